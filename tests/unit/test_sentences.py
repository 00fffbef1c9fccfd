"""Rules decide by codes and numbers: none reads a sentence, and none writes one.

Sentences are written in ``ncclscope/wording`` alone.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from importlib import import_module
from pathlib import Path
from string import Formatter

import pytest

from ncclscope.wording.phrase import Phrase

ROOT = Path(__file__).parents[2]
RULES = (ROOT / "ncclscope" / "engine", ROOT / "analyzers" / "ncclscope_analyzers")
"""Rooms that write no sentence: ``ncclscope/wording`` says what they decide."""
WORDS = 3
"""Words that make a text a sentence."""
HELD = frozenset(
    {"clause", "evidence", "inferred", "notes", "reason", "says", "summary", "text", "why"}
)
"""Attributes that hold sentences."""
MADE = ("_text", "join", "raised_line", "seen_at", "sentence", "what_keeps")
"""Functions that return sentences, by the ends of their names."""
READ = frozenset(
    {
        *("casefold", "endswith", "find", "index", "lower", "partition", "removeprefix"),
        *("removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip"),
        *("split", "splitlines", "startswith", "strip", "upper"),
    }
)
"""Methods of a text that read it."""
SEARCHED = frozenset({"findall", "finditer", "fullmatch", "match", "search"})
"""Methods of a pattern that read a text."""
GROUPED = frozenset({"add", "get", "pop", "setdefault"})
"""Methods that group things by a text."""


class Reader:
    """Find where a module reads sentences.

    Args:
        source: The source of the module.
        known: Names of constants of other modules that hold sentences.
    """

    def __init__(self, source: str, known: Collection[str] = ()) -> None:
        self._tree = ast.parse(source)
        self._constants = {*known, *constants(source)}

    @property
    def reads(self) -> list[tuple[int, str]]:
        """The lines and expressions that read a sentence."""
        return sorted(
            {
                (node.lineno, ast.unparse(node))
                for scope in ast.walk(self._tree)
                if isinstance(scope, ast.FunctionDef)
                for held in [self._held(scope)]
                for node in ast.walk(scope)
                if isinstance(node, ast.expr) and self._is_read(node, held)
            }
        )

    def _held(self, scope: ast.FunctionDef) -> set[str]:
        """Return the variables of a function that hold sentences."""
        given = [pair for node in ast.walk(scope) for pair in _given(node)]
        held = {*self._constants}
        for _ in given:  # a variable may get what another one holds
            held |= {
                target.id
                for target, value in given
                if isinstance(target, ast.Name) and self._is_sentence(value, held)
            }
        return held

    def _is_sentence(self, node: ast.expr, held: Collection[str]) -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr in HELD
        if isinstance(node, ast.Name):
            return node.id in held
        if isinstance(node, (ast.NamedExpr, ast.Starred, ast.Subscript)):
            return self._is_sentence(node.value, held)
        if isinstance(node, ast.Set):
            return any(self._is_sentence(one, held) for one in node.elts)
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", "") or getattr(node.func, "id", "")
            return name.endswith(MADE) or _is_phrase(node)
        if isinstance(node, ast.IfExp):
            return self._is_sentence(node.body, held) or self._is_sentence(node.orelse, held)
        if isinstance(node, ast.BoolOp):
            return any(self._is_sentence(one, held) for one in node.values)
        return _is_prose(node)

    def _is_read(self, node: ast.expr, held: Collection[str]) -> bool:
        def is_any(nodes: list[ast.expr]) -> bool:
            return any(self._is_sentence(one, held) for one in nodes)

        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            is_none = any(isinstance(one, ast.Constant) and one.value is None for one in sides)
            return is_any(sides) and not is_none
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in GROUPED | SEARCHED:
                return is_any(node.args[:1])
            # ``missing`` is also what a run calls its ranks without a record.
            is_missing = getattr(node.func.value, "attr", "") == "missing"
            return node.func.attr in READ and (is_missing or is_any([node.func.value]))
        if isinstance(node, ast.Subscript):
            return self._is_sentence(node.value, held) and not isinstance(node.value, ast.Tuple)
        if isinstance(node, ast.SetComp):
            return is_any([node.elt])
        return isinstance(node, ast.DictComp) and is_any([node.key])


def _is_phrase(node: ast.Call) -> bool:
    """Return whether a call is ``Kind.CODE.of(...)``, which fills the slots of a phrase."""
    made = node.func
    return (
        isinstance(made, ast.Attribute)
        and made.attr == "of"
        and not isinstance(made.value, ast.Name)
    )


def constants(source: str) -> Iterator[str]:
    """Yield the constants of a module that hold sentences."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and _is_prose(node.value):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _is_prose(node: ast.expr) -> bool:
    """Return whether an expression is a text of several words, or a tuple of such texts."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and " " in node.value.strip()
    if isinstance(node, ast.JoinedStr):
        return any(_is_prose(one) for one in node.values)
    return isinstance(node, ast.Tuple) and any(map(_is_prose, node.elts))


def _given(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets to which a node gives values, and the values; also those of loops."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        yield from [(node.target, node.value)] if node.value is not None else []
    elif isinstance(node, (ast.For, ast.comprehension)):
        yield node.target, node.iter


def test_no_rule_reads_a_sentence() -> None:
    sources = {
        path: path.read_text(encoding="utf-8")
        for room in RULES
        for path in sorted(room.rglob("*.py"))
    }
    shared = {
        name
        for source in sources.values()
        for name in constants(source)
        if not name.startswith("_")
    }
    assert [
        f"{path.relative_to(ROOT)}:{line}: {read}"
        for path, source in sources.items()
        for line, read in Reader(source, shared).reads
    ] == []


@pytest.mark.parametrize(
    "rule",
    [
        "stacks.summary == cause.summary",
        "finding.summary.rpartition('; ')[2].replace(' for it ', f' for rank {number} ')",
        "finding.summary.rstrip('.')",
        "any(f'rank {n} ' in line for line in finding.evidence for n in lost)",
        "finding.evidence[:1]",
        "inferred == finding.inferred",
        "' for key ' in wait.text",
        "len({one.text for one in waits}) != 1",
        "groups.setdefault(one.text, {})",
        "self.why.startswith(_TOOK)",
        "seen_at(case.run, rank.rank).startswith('at work')",
        "reason.missing.partition(':')[0][:40]",
        "case.how_it_ended(peer) == EXITED",
        "HEARTBEAT_ENDS in how",
        "{*hows} == {GONE}",
        "self.item == LINES",
        "f'{text[:-1]})' if (text := moving.text) else text",
        "(who := f'on the device of {ranks}').removeprefix('on ')",
        "(text := '; '.join(halves)).replace(f'rank {n}', name, 1)",
        "Gap.STACK.of(ranks) in finding.evidence[1]",
        "(text := Wait.OPEN.of(wait)).partition(';')",
    ],
)
def test_a_rule_that_reads_a_sentence_is_found(rule: str) -> None:
    assert Reader(
        f"def rule():\n    return {rule}\n", {"EXITED", "GONE", "HEARTBEAT_ENDS", "LINES"}
    ).reads


@pytest.mark.parametrize(
    "rule",
    [
        "replace(finding, inferred=(*finding.inferred, 'it hung'))",
        "finding.with_note(f'Only {ranks} would release all.')",
        "difference.reason is not None",
        "how.code is End.EXITED",
        "call.op == 'all_reduce'",
        "error.startswith(_INTERRUPTS)",
        "run.missing <= lost",
    ],
)
def test_a_rule_that_reads_codes_is_none(rule: str) -> None:
    assert Reader(f"def rule():\n    return {rule}\n").reads == []


def sentences(source: str) -> list[tuple[int, str]]:
    """Return the lines and texts of sentences in a module.

    Docstrings, errors and patterns are none.
    """
    tree = ast.parse(source)
    skipped = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
        or (isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile")
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for part in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        skipped.update(map(id, parts))
        texts = [str(getattr(part, "value", "0")) for part in parts if _is_text(part)]
        if len([word for word in "0".join(texts).split() if _is_word(word)]) >= WORDS:
            found.append((getattr(node, "lineno", 0), ast.unparse(node)))
    return found


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_word(text: str) -> bool:
    return text.strip("(),.:;'").isalpha()


def test_no_rule_writes_a_sentence() -> None:
    assert [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for room in RULES
        for path in sorted(room.rglob("*.py"))
        for line, text in sentences(path.read_text(encoding="utf-8"))
    ] == []


@pytest.mark.parametrize(
    "rule",
    [
        "summary = 'none has completed it'",
        "summary = f'{who} posted {call} as call {seq}'",
        "say(f'rank {rank} ended', 'the process that served it')",
        "WHY = {'late': 'it came too late'}",
    ],
)
def test_a_rule_that_writes_a_sentence_is_found(rule: str) -> None:
    assert sentences(rule)


@pytest.mark.parametrize(
    "rule",
    [
        "kind = 'missing_call'",
        "'''A docstring of several words.'''",
        "raise ValueError('no such rank here')",
        "LOST = re.compile('closed by peer|reset by peer')",
        "text = f'{who}: {what}'",
    ],
)
def test_a_rule_that_writes_codes_is_clean(rule: str) -> None:
    assert not sentences(rule)


PHRASES = {
    kind.__name__: {phrase.name: str(phrase) for phrase in kind}
    for module in sorted((ROOT / "ncclscope" / "wording").glob("*.py"))
    for kind in vars(import_module(f"ncclscope.wording.{module.stem}")).values()
    if isinstance(kind, type) and issubclass(kind, Phrase)
}
"""The wordings of each code, by the name of its class."""


def slots(wording: str) -> tuple[int, set[str]]:
    """Return how many values a wording takes, and the names of others."""
    fields = [
        name.partition(".")[0] for _, name, *_ in Formatter().parse(wording) if name is not None
    ]
    numbers = {int(name) for name in fields if name.isdecimal()}
    return max(len([name for name in fields if not name]), *(n + 1 for n in numbers), 0), {
        name for name in fields if name and not name.isdecimal()
    }


def misfits(source: str) -> list[tuple[int, str]]:
    """Return the lines and calls in which a phrase lacks a value for one of its slots."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".of")):
            continue
        kind, code, _ = ["", *ast.unparse(node.func).split(".")][-3:]
        given = {one.arg for one in node.keywords}
        if code not in PHRASES.get(kind, {}) or None in given:
            continue
        count, named = slots(PHRASES[kind][code])
        if len(node.args) != count or not named <= given:
            found.append((node.lineno, ast.unparse(node)))
    return found


def test_each_phrase_gets_values_for_its_slots() -> None:
    assert [
        f"{path.relative_to(ROOT)}:{line}: {call}"
        for room in RULES
        for path in sorted(room.rglob("*.py"))
        for line, call in misfits(path.read_text(encoding="utf-8"))
    ] == []


@pytest.mark.parametrize("call", ["Gap.BARE.of()", "Gap.NCCL.of(1, 2)", "Wait.IN.of(ranks=[1])"])
def test_a_phrase_without_a_value_is_found(call: str) -> None:
    assert misfits(call)
