"""Rules decide by codes and numbers: none reads a sentence that another rule has written."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RULES = (ROOT / "ncclscope" / "analysis", ROOT / "analyzers" / "ncclscope_analyzers")
SENTENCES = frozenset(
    {"clause", "evidence", "inferred", "missing_text", "reason", "says", "summary", "text", "why"}
)
"""Attributes that hold sentences."""
MAKERS = ("_text", "_line", "_lines", "_clause")
"""How functions end that return sentences."""
READS = frozenset(
    {
        *("count", "endswith", "find", "index", "partition", "removeprefix", "removesuffix"),
        *("replace", "rfind", "rindex", "rpartition", "rsplit", "split", "splitlines"),
        *("startswith", "casefold", "lower", "upper"),
        *("fullmatch", "match", "search", "findall", "finditer"),
    }
)
"""Methods of strings and patterns that read a text."""
KEYED = frozenset({"add", "get", "pop", "setdefault"})
"""Methods by which things are grouped."""

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module


class Reads:
    """Find where a file reads a sentence.

    Args:
        source: The source.
    """

    def __init__(self, source: str) -> None:
        tree = ast.parse(source)
        self._constants = {
            name
            for node in tree.body
            if isinstance(node, ast.Assign) and _is_prose(node.value)
            for target in node.targets
            for name in _names(target)
        }
        self.found = sorted({*self._of(tree)})

    def _of(self, tree: ast.Module) -> Iterator[tuple[int, str]]:
        functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)]
        for scope in functions:
            held = self._held(scope)
            for node in ast.walk(scope):
                if isinstance(node, ast.expr) and self._reads(node, held):
                    yield node.lineno, ast.unparse(node)

    def _held(self, scope: ast.FunctionDef) -> frozenset[str]:
        """Return the names to which a function gives a sentence."""
        held: frozenset[str] = frozenset()
        while True:
            names = {
                name
                for node in ast.walk(scope)
                for target, value in _given(node)
                if self._is_sentence(value, held) or self._are_sentences(node, value, held)
                for name in _names(target)
            }
            if names <= held:
                return held
            held |= names

    def _are_sentences(self, node: ast.AST, value: ast.expr, held: frozenset[str]) -> bool:
        """Return whether a loop goes through sentences."""
        return isinstance(node, (ast.For, ast.comprehension)) and self._is_sentence(value, held)

    def _is_sentence(self, node: ast.expr, held: frozenset[str]) -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr in SENTENCES
        if isinstance(node, ast.Name):
            return node.id in held or node.id in self._constants
        if isinstance(node, ast.Subscript):
            return self._is_sentence(node.value, held)
        if isinstance(node, ast.Call):
            called = node.func
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            return name.endswith(MAKERS) or name == "sentence" or _joins(called)
        if isinstance(node, ast.IfExp):
            return self._is_sentence(node.body, held) or self._is_sentence(node.orelse, held)
        if isinstance(node, ast.BoolOp):
            return any(self._is_sentence(one, held) for one in node.values)
        return _is_prose(node)

    def _reads(self, node: ast.expr, held: frozenset[str]) -> bool:
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            is_none = any(isinstance(one, ast.Constant) and one.value is None for one in sides)
            return not is_none and any(self._is_sentence(one, held) for one in sides)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            named, given = node.func.attr, node.args[:1]
            if named in KEYED:
                return any(self._is_sentence(one, held) for one in given)
            own = self._is_sentence(node.func.value, held)
            return named in READS and (own or any(self._is_sentence(one, held) for one in given))
        if isinstance(node, ast.Subscript):
            return self._is_sentence(node.value, held)
        if isinstance(node, ast.SetComp):
            return self._is_sentence(node.elt, held)
        if isinstance(node, ast.DictComp):
            return self._is_sentence(node.key, held)
        return False


def _joins(called: ast.expr) -> bool:
    return (
        isinstance(called, ast.Attribute)
        and called.attr == "join"
        and isinstance(called.value, ast.Constant)
    )


def _is_prose(node: ast.expr) -> bool:
    """Return whether an expression is a text of several words, or a tuple of such texts."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and " " in node.value.strip()
    if isinstance(node, ast.JoinedStr):
        return any(_is_prose(one) for one in node.values)
    if isinstance(node, ast.Tuple):
        return any(_is_prose(one) for one in node.elts)
    return False


def _names(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id


def _given(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, (ast.NamedExpr, ast.AugAssign)):
        yield node.target, node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, (ast.For, ast.comprehension)):
        yield node.target, node.iter


def reads(path: Path) -> list[str]:
    """Return where a file reads sentences."""
    found = Reads(path.read_text(encoding="utf-8")).found
    return [f"{path.name}:{line}: {text}" for line, text in found]


def test_no_rule_reads_a_sentence() -> None:
    assert [
        read for room in RULES for path in sorted(room.rglob("*.py")) for read in reads(path)
    ] == []
