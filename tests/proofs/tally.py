"""Check the proof of each cause of a verdict, and count how many hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncclscope.model import Run
from tests.proofs.checker import Unclear, check

__all__ = ["Checked", "examine", "table"]

AGREES, REFUSED = "agrees", "disagrees"


@dataclass(frozen=True)
class Checked:
    """The proof of a cause.

    Attributes:
        kind: Kind of the cause.
        confidence: Its confidence.
        ranks: Its diverging ranks.
        word: ``agrees``, ``disagrees``, or why the proof was not checked.
        wrong: What is wrong with it.
    """

    kind: str
    confidence: str
    ranks: tuple[int, ...]
    word: str
    wrong: tuple[str, ...] = ()

    @property
    def is_refused(self) -> bool:
        """Whether the records contradict the proof."""
        return self.word == REFUSED

    def __str__(self) -> str:
        return f"{self.confidence} {self.kind} of {list(self.ranks)}: {'; '.join(self.wrong)}"


def examine(run: Run, document: Mapping[str, Any]) -> list[Checked]:
    """Check the proof of each cause of a verdict, as ``--json`` prints it."""
    causes = [one for one in document["findings"] if one["role"] == "cause"]
    return [_examined(run, cause) for cause in causes]


def _examined(run: Run, cause: Mapping[str, Any]) -> Checked:
    wrong: Sequence[str] = ()
    try:
        wrong = check(run, cause)
        word = REFUSED if wrong else AGREES
    except Unclear as reason:
        word = str(reason)
    if cause["proof"] is None:
        word = _without(cause)
    return Checked(
        cause["kind"], cause["confidence"], tuple(cause["diverging_ranks"]), word, tuple(wrong)
    )


def _without(cause: Mapping[str, Any]) -> str:
    """Return why a cause has no proof, as far as that shows."""
    if not cause["diverging_ranks"]:
        return "no proof: no rank is named"
    if any("went on" in text for text in (cause["summary"], *cause["evidence"])):
        return "no proof: all went on"
    return "no proof"


def table(checked: Iterable[Checked]) -> str:
    """Return how many proofs agree, disagree, and could not be checked, and those that disagree."""
    found = list(checked)
    words = Counter(one.word for one in found)
    lines = [f"{count:6} {word}" for word, count in words.most_common()]
    without = Counter((one.word, one.kind) for one in found if one.word.startswith("no proof"))
    lines += [f"{count:6} {word}: {kind}" for (word, kind), count in sorted(without.items())]
    return "\n".join([f"{len(found)} causes", *lines])
