"""How good an answer is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.services.case import Truth

__all__ = ["NOT_BAD", "WORDS", "judge"]

WORDS = ("right", "fair", "unknown", "wrong", "ok and hung", "false alarm", "no answer")
"""``right``: status, kind and who is at fault. ``fair``: who is at fault is a candidate or in the
summary, or the kind is right, and nobody innocent is named. ``unknown``: nobody is named, and no
cause. ``wrong``: an innocent rank, another cause, or more certainty than there is. ``ok and hung``:
``ok`` though clients wait for ever. ``false alarm``: a hang or a cause in a healthy service."""
NOT_BAD = ("right", "fair", "unknown")
_RANKED = ("ambiguous", "likely", "certain")


def judge(
    document: Mapping[str, Any] | None,
    truth: Truth,
    pids: Mapping[str, int],
    *,
    killed: bool = False,
) -> str:
    """Return one of :data:`WORDS`.

    Args:
        document: What ``--json`` printed, or nothing.
        truth: What is true of the service.
        pids: Process ids of the service, by title.
        killed: Whether its processes had been killed when the question was put.
    """
    if document is None:
        return "no answer"
    status, summary = document["status"], document["summary"]
    causes = [each for each in document["findings"] if each["role"] == "cause"]
    admitted = truth.killed if killed and truth.killed else truth.statuses
    if truth.is_healthy:
        if causes or status in ("hung", "diverged"):
            return "false alarm"
        says = killed or re.search(truth.says, summary)
        return "right" if status in admitted and says else "unknown"
    if status == "ok":
        return "right" if "ok" in admitted else "ok and hung"
    if any(not set(each["diverging_ranks"]) <= {*truth.ranks, *truth.suspects} for each in causes):
        return "wrong"
    evidence = [line for each in causes[:1] for line in each["evidence"]]
    named = _is_named("\n".join([summary, *evidence]), truth, pids)
    blamed = {rank for each in causes for rank in each["diverging_ranks"]}
    candidates = {rank for each in causes for rank in each["candidate_ranks"]}
    nobody = not (truth.ranks or truth.process or truth.says)
    met = nobody or named or bool(blamed & set(truth.ranks))
    if not causes:
        return "right" if status in admitted and named else "fair" if named else "unknown"
    if any(_RANKED.index(each["confidence"]) > _RANKED.index(truth.confidence) for each in causes):
        return "wrong"
    if status in admitted and met and causes[0]["kind"] in truth.kinds:
        return "right"
    fair = named or blamed or candidates & {*truth.ranks, *truth.suspects}
    return "fair" if fair or causes[0]["kind"] in truth.kinds else "wrong"


def _is_named(text: str, truth: Truth, pids: Mapping[str, int]) -> bool:
    """Return whether a text names the process at fault, or says what it is to say."""
    if not truth.process and not truth.says:
        return False
    if truth.process:
        title, pattern = truth.process
        found = [pid for name, pid in pids.items() if name.startswith(title)]
        by_pid = any(re.search(rf"\b(pid|Process) {pid}\b", text) for pid in found[:1])
        if not by_pid and not re.search(pattern, text, re.IGNORECASE):
            return False
    return bool(re.search(truth.says, text))
