"""The conditions under which a function of vLLM does one thing or another, read off its source."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["attempts", "branches", "methods"]


@cache
def _class(module: str, name: str) -> ast.ClassDef:
    """Find a class without importing its module."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise SystemExit("vLLM is not installed")
    path = Path(spec.origin).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise SystemExit(f"{path} has no class {name}; this was written for vLLM 0.32")


def methods(module: str, owner: str) -> Iterator[ast.FunctionDef]:
    """Yield the methods of a class.

    Args:
        module: Such as ``vllm.distributed.device_communicators.all2all``.
        owner: The class.
    """
    for node in _class(module, owner).body:
        if isinstance(node, ast.FunctionDef):
            yield node


def branches(method: ast.FunctionDef) -> Iterator[tuple[int, str]]:
    """Yield line and condition of every branch, in order."""
    tests = [
        node.test for node in ast.walk(method) if isinstance(node, (ast.If, ast.IfExp, ast.While))
    ]
    for test in sorted(tests, key=lambda test: (test.lineno, test.col_offset)):
        yield test.lineno, ast.unparse(test)


def attempts(method: ast.FunctionDef) -> Iterator[tuple[int, str, str]]:
    """Yield line, condition and call of each all-reduce that a method tries, in order."""
    for node in method.body:
        if not isinstance(node, ast.If) or not _returns(node):
            continue
        calls = [each for each in ast.walk(ast.Module(node.body, [])) if isinstance(each, ast.Call)]
        spelled = [ast.unparse(call) for call in calls]
        tried = [call for call in spelled if "all_reduce" in call]
        if tried:
            yield node.lineno, ast.unparse(node.test), tried[0]


def _returns(node: ast.If) -> bool:
    return any(isinstance(each, ast.Return) for each in ast.walk(node))
