"""How good a verdict on a world is, and how many of them are how good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.worlds.truth import Story, Truth

__all__ = ["WORDS", "causes_of", "in_columns", "judge", "table"]

WORDS = (
    "right",
    "other story",
    "fair",
    "unknown",
    "wrong",
    "certain and wrong",
    "ok and hung",
    "false alarm",
)
"""``right``: rank and story. ``other story``: the rank, and not what it did. ``fair``: nobody is
named and the rank is among the candidates, or a rank is named, without certainty, to which the
same records may be put down. ``unknown``: no cause. ``wrong``: an innocent rank, or no word of the
fault. ``certain and wrong``: the same, with certainty. ``ok and hung``: ``ok``, though ranks wait
for ever. ``false alarm``: a cause in a healthy job."""
_RANKED = ("ambiguous", "likely", "certain")


def judge(document: Mapping[str, Any], truth: Truth) -> str:
    """Return one of :data:`WORDS` for a verdict as ``--json`` prints it.

    The first cause counts. A further one counts where it names an innocent rank, and makes another
    story of a right one where it is among innocent ranks.
    """
    causes = [each for each in document["findings"] if each["role"] == "cause"]
    status = document["status"]
    if not truth.stories:
        if causes or status in ("diverged", "hung"):
            return "false alarm"
        return "right" if status == "ok" else "unknown"
    if status == "ok":
        if truth.stuck:
            return "ok and hung"
        return "right" if truth.harmless and not _shows(truth) else "unknown"
    if not causes:
        return "unknown"
    first, *more = (_judge_cause(cause, truth) for cause in causes)
    for cause, word in zip(causes[1:], more, strict=True):
        if word in ("wrong", "certain and wrong") and cause["diverging_ranks"]:
            return word if word == "certain and wrong" or first == "right" else first
    return "other story" if first == "right" and "wrong" in more else first


def _shows(truth: Truth) -> bool:
    """Return whether the records of a job that has come to its end differ."""
    return any(story.seqs for story in truth.stories)


def _judge_cause(cause: Mapping[str, Any], truth: Truth) -> str:
    blamed = frozenset(cause["diverging_ranks"])
    candidates = frozenset(cause["candidate_ranks"])
    confidence = cause["confidence"]
    if not blamed:
        return "fair" if candidates & truth.ranks else "wrong"
    if not blamed <= truth.ranks:
        if confidence == "certain":
            return "certain and wrong"
        return "fair" if blamed <= truth.ranks | truth.suspects else "wrong"
    stories = [story for story in truth.stories if story.planted.rank in blamed]
    return "right" if all(_tells(cause, story) for story in stories) else "other story"


def _tells(cause: Mapping[str, Any], story: Story) -> bool:
    """Return whether a cause describes a fault."""
    highest = story.kinds.get(cause["kind"])
    if highest is None or _RANKED.index(cause["confidence"]) > _RANKED.index(highest):
        return False
    label = (cause["comm"] or {}).get("label", "")
    # Who waits for a process that has ended may do so on any communicator.
    anywhere = not story.comms or cause["kind"] == "dead_rank"
    if label and label not in story.comms and not anywhere:
        return False
    seqs = story.seqs.get(label)
    return not seqs or cause["seq"] is None or cause["seq"] in seqs


def table(words: Iterable[tuple[str, str]]) -> str:
    """Return a table with a row for each fault.

    Args:
        words: Fault and word of each world.
    """
    counts = Counter(words)
    faults = list(dict.fromkeys(fault for fault, _ in counts))
    rows: list[tuple[str, ...]] = [("fault", "worlds", *WORDS)]
    for name in (*sorted(faults), "all"):
        own = [
            sum(n for (fault, each), n in counts.items() if each == word and name in (fault, "all"))
            for word in WORDS
        ]
        rows.append((name, str(sum(own)), *(str(count or "") for count in own)))
    return in_columns(rows)


def in_columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows as lines, the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            text.ljust(width) if number == 0 else text.rjust(width)
            for number, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def causes_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what is kept of the causes in a verdict as ``--json`` prints it."""
    return [
        {
            "kind": cause["kind"],
            "ranks": cause["diverging_ranks"],
            "candidates": cause["candidate_ranks"],
            "confidence": cause["confidence"],
            "comm": (cause["comm"] or {}).get("label"),
            "seq": cause["seq"],
            "summary": cause["summary"],
        }
        for cause in document["findings"]
        if cause["role"] == "cause"
    ]
