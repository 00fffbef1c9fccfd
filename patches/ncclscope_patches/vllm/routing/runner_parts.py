"""What vLLM's second model runner must have, so that its steps can be captured.

It is read from the source: every process of a server must decide alike, and only the workers
import the runner.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Mapping
from pathlib import Path

_PACKAGE = "vllm.v1.worker.gpu"
_METHODS = {
    ("model_runner", "GPUModelRunner"): (
        "load_model",
        "get_model",
        "prepare_inputs",
        "execute_model",
        "sample_tokens",
    ),
    ("async_utils", "AsyncOutput"): ("get_output",),
}
_FIELDS = {("input_batch", "InputBatch"): ("req_ids", "query_start_loc_np")}


@functools.cache
def missing() -> tuple[str, ...]:
    """Return what the installed vLLM's second runner lacks; nothing if it can be served."""
    sources = {}
    for module in sorted({module for module, _ in (*_METHODS, *_FIELDS)}):
        try:
            spec = importlib.util.find_spec(f"{_PACKAGE}.{module}")
            if spec is None or spec.origin is None:
                raise ModuleNotFoundError(module)
            sources[module] = Path(spec.origin).read_text()
        except (ImportError, OSError, ValueError):
            return (f"there is no {_PACKAGE}.{module} to read",)
    return missing_in(sources)


def missing_in(sources: Mapping[str, str]) -> tuple[str, ...]:
    """Return what modules of the runner lack.

    Args:
        sources: Text of each module by its name within vLLM's package of the runner.
    """
    try:
        trees = {module: ast.parse(text) for module, text in sources.items()}
    except SyntaxError as error:
        return (f"its source cannot be read: {error}",)
    found = []
    for (module, name), needed in (_METHODS | _FIELDS).items():
        owner = _class(trees[module], name)
        members = set() if owner is None else _members(owner)
        found += [f"{name} has no {member}" for member in needed if member not in members]
    runner = _class(trees["model_runner"], "GPUModelRunner")
    # The rows of a step are known from there until its forward pass.
    if not found and runner is not None and not _prepares(runner):
        found.append("GPUModelRunner.execute_model does not call prepare_inputs")
    return tuple(found)


def _class(tree: ast.Module, name: str) -> ast.ClassDef | None:
    return next(
        (part for part in tree.body if isinstance(part, ast.ClassDef) and part.name == name), None
    )


def _members(owner: ast.ClassDef) -> set[str]:
    """Return the names of a class's methods and annotated fields."""
    names = {part.name for part in owner.body if isinstance(part, ast.FunctionDef)}
    fields = (part.target for part in owner.body if isinstance(part, ast.AnnAssign))
    return names | {target.id for target in fields if isinstance(target, ast.Name)}


def _prepares(runner: ast.ClassDef) -> bool:
    return any(
        isinstance(inner, ast.Attribute)
        and inner.attr == "prepare_inputs"
        # The runner's own method, not that of the model's state, which has the same name.
        and isinstance(inner.value, ast.Name)
        for part in runner.body
        if isinstance(part, ast.FunctionDef) and part.name == "execute_model"
        for inner in ast.walk(part)
    )
