"""What is changed: mutants, how they are chosen blindly, and the committed list."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.programs import ROOT

__all__ = ["LIST", "Mutant", "choose", "load", "store"]

LIST = Path(__file__).with_name("mutants.json")
PACKAGES = ("ncclscope", "analyzers/ncclscope_analyzers", "patches/ncclscope_patches")
ELSEWHERE = ("patches/ncclscope_patches/vllm/", "ncclscope/attach/gpu", "ncclscope/tracing/device/")
"""Run by `make test-vllm` or on GPUs only."""

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.In: (" in ", " not in "),
    ast.NotIn: (" not in ", " in "),
    ast.Is: (" is ", " is not "),
    ast.IsNot: (" is not ", " is "),
}
OPERATORS: dict[type[ast.operator], tuple[str, str]] = {ast.Add: ("+", "-"), ast.Sub: ("-", "+")}


@dataclass(frozen=True)
class Mutant:
    """One changed line.

    Attributes:
        file: Path below the root of the repository.
        line: Number of the line when it was chosen; the nearest line of that text is changed.
        text: The line.
        replacement: The text put there instead.
        equivalent: Why no test can notice it; empty where one can.
    """

    file: str
    line: int
    text: str
    replacement: str
    equivalent: str = ""

    def apply(self, root: Path) -> bool:
        """Change the line in a copy of the repository; return whether it was found."""
        path = root / self.file
        if not path.exists():
            return False
        lines = path.read_text("utf-8").split("\n")
        found = [number for number, text in enumerate(lines, 1) if text == self.text]
        if not found:
            return False
        number = min(found, key=lambda number: abs(number - self.line))
        lines[number - 1] = self.replacement
        path.write_text("\n".join(lines), "utf-8")
        return True

    def restore(self, root: Path) -> None:
        """Undo the change."""
        (root / self.file).write_bytes((ROOT / self.file).read_bytes())


def choose(seed: int, count: int) -> list[Mutant]:
    """Choose mutants at random, at most one of each file.

    Files are drawn with their number of candidates as weight, without any knowledge of what the
    tests notice.

    Args:
        seed: Of the random numbers.
        count: How many to choose.
    """
    draw = random.Random(seed)
    candidates = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            found = [] if file.startswith(ELSEWHERE) else sorted(set(_mutants(path, file)), key=str)
            if found:
                candidates[file] = found
    chosen: list[Mutant] = []
    while candidates and len(chosen) < count:
        (file,) = draw.choices([*candidates], [len(found) for found in candidates.values()])
        chosen.append(draw.choice(candidates.pop(file)))
    return sorted(chosen, key=lambda mutant: mutant.file)


def _mutants(path: Path, file: str) -> Iterator[Mutant]:
    """Yield every mutant of a file: of code in functions, each within one line."""
    source = path.read_text("utf-8")
    lines = source.split("\n")
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for statement in function.body:
            for node in ast.walk(statement):
                for line, begin, end, new in _changes(node, lines):
                    text = lines[line - 1]
                    yield Mutant(file, line, text, text[:begin] + new + text[end:])


def _changes(node: ast.AST, lines: list[str]) -> Iterator[tuple[int, int, int, str]]:
    """Yield changes of a node: line, first and last column, and the text put between instead."""
    if not isinstance(node, ast.expr | ast.stmt) or node.lineno != node.end_lineno:
        return
    line, begin, end = node.lineno, node.col_offset, node.end_col_offset
    assert end is not None
    if not lines[line - 1].isascii():
        return  # columns are counted in bytes

    def between(left: ast.expr, right: ast.expr, names: tuple[str, str]) -> Iterator[int]:
        assert left.end_col_offset is not None
        at = lines[line - 1].find(names[0], left.end_col_offset, right.col_offset + 1)
        if at >= 0:
            yield at

    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        names = COMPARISONS[type(node.ops[0])]
        for at in between(node.left, node.comparators[0], names):
            yield line, at, at + len(names[0]), names[1]
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        names = OPERATORS[type(node.op)]
        for at in between(node.left, node.right, names):
            yield line, at, at + len(names[0]), names[1]
    elif isinstance(node, ast.BoolOp):
        names = (" and ", " or ") if isinstance(node.op, ast.And) else (" or ", " and ")
        for at in between(node.values[0], node.values[1], names):
            yield line, at, at + len(names[0]), names[1]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield line, begin, begin + len("not "), ""
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield line, begin, end, str(node.value + 1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield line, begin, end, str(not node.value)
    elif isinstance(node, ast.Return) and node.value is not None:
        yield line, begin, end, "return None"
    elif isinstance(node, ast.AugAssign):
        yield line, begin, end, "pass"


def load() -> list[Mutant]:
    """Return the committed mutants."""
    return [Mutant(**fields) for fields in json.loads(LIST.read_text("utf-8"))]


def store(mutants: list[Mutant]) -> None:
    """Write the list."""
    LIST.write_text(json.dumps([asdict(mutant) for mutant in mutants], indent=1) + "\n", "utf-8")
