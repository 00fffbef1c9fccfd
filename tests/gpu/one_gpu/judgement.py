"""How good an answer about a program is: rank and kind as for the corpus, then call and line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.corpus.runner.score import describe, score, score_healthy
from tests.gpu.one_gpu.truth import Mistake

__all__ = ["VALUES", "call_of", "judge", "lines_of", "say", "summary"]

VALUES = (
    "right", "right, other line", "right, other call", "right, other kind", "fairly undecided",
    "unknown", "undecided", "too certain", "OK", "wrong rank", "wrong and certain", "quiet",
    "false alarm", "no answer",
)  # fmt: skip
_SITE = re.compile(r"([^\s/]+)\.py:(\d+)")


def judge(document: Mapping[str, Any] | None, mistake: Mistake, bad: int | None) -> str:
    """Return one of `VALUES`.

    Args:
        document: The JSON of the command; None where it gave none.
        mistake: The truth.
        bad: The faulty rank; None for a healthy run.
    """
    if document is None:
        return "no answer"
    if bad is None:
        return score_healthy([dict(document)])
    found = score(dict(document), mistake.program(bad), "diagnose")
    if found == "undecided" and document["status"] == "unknown":
        return "unknown"
    if found != "right":
        return found
    operations = {str(call.get("op")) for call in _calls(document["verdict"])}
    # A rank that is late, or a group that is not made, has no call to show.
    if operations and not any(one.startswith(mistake.operations) for one in operations):
        return "right, other call"
    named = lines_of(document, mistake.name)
    return "right" if named & mistake.lines else "right, other line"


def lines_of(document: Mapping[str, Any], name: str) -> set[int]:
    """Return the lines of a program that a verdict names: of calls, of the reason, to mend."""
    verdict = document.get("verdict") or {}
    sites = [str(call.get(key)) for call in _calls(verdict) for key in ("site", "user_site")]
    sites += [str((document.get("action") or {}).get("line"))]
    reason = verdict.get("reason") or {}
    sites.append(f"{reason.get('file')}:{reason.get('line')}")
    found = {match for site in sites for match in _SITE.findall(site)}
    return {int(line) for file, line in found if file == name}


def _calls(verdict: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for key in ("odd", "peers"):
        if isinstance(verdict.get(key), Mapping):
            yield verdict[key]
    yield from verdict.get("round") or ()


def call_of(document: Mapping[str, Any] | None) -> str:
    """Return the communicator, number and operation that a verdict names."""
    verdict = (document or {}).get("verdict") or {}
    comm = verdict.get("comm") or {}
    operations = "/".join(dict.fromkeys(str(call.get("op")) for call in _calls(verdict)))
    number = verdict.get("seqs") or verdict.get("seq")
    return f"{comm.get('label', '-')} {number or '-'} {operations or '-'}"


def say(document: Mapping[str, Any] | None, mistake: Mistake) -> str:
    """Return what an answer says, in a few words: verdict, call and lines."""
    if document is None:
        return "-"
    lines = ",".join(map(str, sorted(lines_of(document, mistake.name)))) or "-"
    return f"{describe(dict(document))}; {call_of(document)}; line {lines}"


def summary(values: Iterable[str]) -> str:
    """Return how many answers got each value."""
    counts = Counter(values)
    return ", ".join(f"{counts[value]} {value}" for value in VALUES if counts[value])
