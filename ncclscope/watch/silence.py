"""What a verdict may say while some hosts do not report.

A rank on such a host is neither late nor dead: nothing is known of it. A verdict that rests on its
absence is no alarm, unless reporting ranks are seen to be stuck; and then it is only a candidate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ncclscope.engine.verdict import Verdict
from ncclscope.model import Finding
from ncclscope.wording.names import call_text, comm_text, plural, ranks_text, sentence, verb

_SHOWN = 3


def notes_on(silent: Mapping[str, str]) -> tuple[str, ...]:
    """Return a note for each silent host.

    Args:
        silent: Reasons by the hosts' names.
    """
    return tuple(f"{name} does not report: {reason}" for name, reason in silent.items())


def reserved(verdict: Verdict, silent: Mapping[str, str], stuck: Sequence[int]) -> Verdict:
    """Return a verdict that singles out no rank of a silent host.

    Args:
        verdict: The verdict on the ranks of the other hosts.
        silent: Reasons by the names of the silent hosts.
        stuck: Reporting ranks that are known to be inside a call for too long.
    """
    if not silent:
        return verdict
    run = replace(verdict.run, notes=(*verdict.run.notes, *notes_on(silent)))
    verdict = replace(verdict, run=run)
    gone = frozenset(run.missing)
    cause = verdict.cause
    if not gone:
        return verdict
    unknown = f"{sentence(ranks_text(gone))}: {_do_not_report(silent)}."
    if cause is None:
        for_them = all(gone & {*one.candidate_ranks} for one in verdict.findings)
        if verdict.status != "incomplete" and not (verdict.status == "unknown" and for_them):
            return verdict
        agreed = f"{unknown} The others agree as far as they go."
        return replace(verdict, status="incomplete", summary=agreed)
    if not gone & {*cause.diverging_ranks, *cause.candidate_ranks}:
        if verdict.status != "hung" or cause.confidence != "certain":
            return verdict
        # The rank was seen not to have joined; a rank that nobody sees may not have, either.
        cause = cause.doubted(unknown)
        return replace(verdict, cause=cause, findings=(cause, *verdict.findings[1:]))
    findings = tuple(_softened(one, gone) for one in verdict.findings)
    if not stuck:
        return replace(
            verdict,
            status="incomplete",
            cause=None,
            findings=tuple(replace(one, role="latent") for one in findings),
            neighbourhood=None,
            quiet_seconds=None,
            summary=f"{unknown} The others agree as far as they go.",
        )
    cause = replace(
        findings[0],
        summary=f"{_waits_text(cause, stuck)}; nothing is known of {ranks_text(gone)}: "
        f"{_do_not_report(silent)}.",
        inferred=("ranks on hosts that do not report may be in this call, too",),
    )
    return replace(verdict, cause=cause, findings=(cause, *findings[1:]), summary=cause.summary)


def outdated(verdict: Verdict, silent: Mapping[str, str], lost: Collection[int]) -> Verdict:
    """Return a verdict that was reached before its diverging ranks were lost, with less certainty.

    Args:
        verdict: The verdict.
        silent: Reasons by the names of the silent hosts.
        lost: Ranks of these hosts.
    """
    run = verdict.run
    notes = tuple(note for note in notes_on(silent) if note not in run.notes)
    if not notes:
        return verdict
    verdict = replace(verdict, run=replace(run, notes=(*run.notes, *notes)))
    cause = verdict.cause
    named = () if cause is None else sorted({*lost} & {*cause.diverging_ranks})
    if cause is None or not named or cause.confidence != "certain":
        return verdict
    since = f"{ranks_text(named)}: {_do_not_report(silent)}, so that this may have changed since"
    cause = cause.doubted(since)
    return replace(verdict, cause=cause, findings=(cause, *verdict.findings[1:]))


def _do_not_report(silent: Mapping[str, str]) -> str:
    names = [*silent]
    if len(names) == 1:
        return f"{names[0]} does not report"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{plural(len(names), 'host')} do not report ({', '.join(names[:_SHOWN])}{more})"


def _softened(finding: Finding, gone: frozenset[int]) -> Finding:
    named = {*finding.diverging_ranks, *finding.candidate_ranks}
    if not gone & named:
        return finding
    return finding.undecided(sorted(named))


def _waits_text(cause: Finding, stuck: Sequence[int]) -> str:
    who = f"{sentence(ranks_text(stuck))} {verb(stuck, 'wait')}"
    if cause.comm is None or cause.seq is None:
        return who
    return f"{who} in call {cause.seq} on {comm_text(cause.comm)}, {call_text(cause.peers)}"


class HostNews:
    """Says which hosts are lost, and which report again."""

    def __init__(self) -> None:
        self._said: dict[str, set[str]] = {}

    def of(self, silent: Mapping[str, str]) -> list[str]:
        """Return what is new, a line for each host; each reason comes once until it reports again.

        Args:
            silent: Reasons by the names of the hosts that do not report now.
        """
        lines = [f"{name} reports again" for name in self._said.keys() - silent.keys()]
        for name in self._said.keys() - silent.keys():
            del self._said[name]
        for name, reason in silent.items():
            said = self._said.setdefault(name, set())
            if reason not in said:
                said.add(reason)
                lines.append(f"{name} does not report: {reason}")
        return lines
