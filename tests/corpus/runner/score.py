"""How good an answer is, given the truth.

=================== =======================================================================
right               it names exactly the diverging ranks, by a kind that describes the mistake
right, other kind   it names exactly the diverging ranks, by a kind that does not
fairly undecided    it names nobody, and where the records cannot decide that is fair: all
                    diverging ranks are among its candidates, and they among the truth's. Of
                    several causes, each may be named or be undecided
unknown             it says so where that is fair
quiet               it says that all is well where that is fair
undecided           it names nobody, or says unknown, where it could have known
wrong rank          it names another rank, or has candidates without the diverging ranks
wrong and certain   the same, and says that it is certain
too certain         it names the diverging ranks with more confidence than there is reason for
OK                  it says that all is well where it is not
no answer           the command failed
=================== =======================================================================

For a healthy run ``quiet`` is what is wanted, and any alarm is a ``false alarm``.
"""

from __future__ import annotations

from typing import Any

from tests.corpus.runner.truth import Program

__all__ = ["FAIR", "NO_ANSWER", "NO_HANG", "SCORES", "describe", "score", "score_healthy"]

NO_ANSWER = "no answer"
NO_HANG = "no hang"
"""The job kept moving, so the answer cannot be judged."""
SCORES = (
    "right", "right, other kind", "fairly undecided", "unknown", "quiet", "undecided",
    "too certain", "OK", "wrong rank", "wrong and certain", "false alarm", NO_ANSWER, NO_HANG,
)  # fmt: skip
FAIR = frozenset(SCORES[:5])
_CONFIDENCES = ("ambiguous", "likely", "certain")
_ALARMS = ("hung", "diverged")


def score(document: dict[str, Any] | None, program: Program, way: str) -> str:
    """Return how good an answer is.

    Args:
        document: The JSON of the command; None where it gave none.
        program: The truth.
        way: ``attach``, ``watch``, ``diagnose`` or ``untraced``.
    """
    if document is None:
        return NO_ANSWER
    if not program.hangs:
        return score_healthy([document])
    status, verdict = document["status"], document["verdict"]
    is_late = status == "unknown" and verdict is not None and verdict["kind"] == "late"
    if status == "unknown" and not is_late:
        return "unknown" if way in program.unknown_in else _undecided(verdict, program, way)
    if verdict is None or (status not in _ALARMS and not is_late):
        if status != "ok":
            return "undecided"
        return "quiet" if way in program.ok_in else "OK"
    causes = _naming(verdict)
    named = _named(verdict)
    if not named:
        return _undecided(verdict, program, way)
    if named == program.ranks or named in program.also:
        if max(map(_sureness, causes)) > _CONFIDENCES.index(program.most):
            return "too certain"
        is_right = all(one["kind"] in program.kinds for one in causes)
        return "right" if is_right else "right, other kind"
    if {*named} < {*program.ranks} and program.fair(way):
        asked = [one for one in verdict.get("causes", ()) if not one["diverging_ranks"]]
        candidates = {rank for one in asked for rank in one["candidate_ranks"]}
        if {*program.ranks} <= {*named, *candidates} and candidates <= program.fair(way):
            return "fairly undecided"
    innocent = [one for one in causes if not {*one["diverging_ranks"]} <= {*program.ranks}]
    certain = len(_CONFIDENCES) - 1
    return "wrong and certain" if certain in map(_sureness, innocent) else "wrong rank"


def _naming(verdict: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the causes that name ranks."""
    return [one for one in verdict.get("causes") or [verdict] if one["diverging_ranks"]]


def _named(verdict: dict[str, Any]) -> tuple[int, ...]:
    return tuple(sorted({rank for one in _naming(verdict) for rank in one["diverging_ranks"]}))


def _sureness(cause: dict[str, Any]) -> int:
    return _CONFIDENCES.index(cause["confidence"])


def _undecided(verdict: dict[str, Any] | None, program: Program, way: str) -> str:
    candidates = frozenset(verdict["candidate_ranks"]) if verdict else frozenset()
    fair = program.fair(way)
    if candidates and not candidates.issuperset(program.ranks):
        certain = verdict is not None and verdict["confidence"] == "certain"
        return "wrong and certain" if certain else "wrong rank"
    if not program.ranks:  # nobody is to be named: all that take part are candidates alike
        least = frozenset(program.involved) or fair
        return "fairly undecided" if least <= candidates <= fair else "undecided"
    return "fairly undecided" if candidates and candidates <= fair else "undecided"


def score_healthy(documents: list[dict[str, Any]]) -> str:
    """Return how good the answers about a healthy run are."""
    if not documents:
        return NO_ANSWER
    return "false alarm" if any(one["status"] in _ALARMS for one in documents) else "quiet"


def describe(document: dict[str, Any] | None) -> str:
    """Return what an answer says, in a few words."""
    if document is None:
        return "-"
    verdict = document["verdict"]
    if verdict is None:
        return str(document["status"])
    named = list(_named(verdict))
    ranks = f"{named}" if named else f"one of {verdict['candidate_ranks']}"
    return f"{document['status']} {verdict['kind']} {ranks} {verdict['confidence']}"
