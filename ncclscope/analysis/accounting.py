"""Hold the causes against the wait graph: they have to account for all that waits, and no more.

Analyzers see a part of the job each: one communicator, transfers or endings. Here a cause becomes a
consequence if the other causes release everything that waits without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ncclscope.analysis.case import Case
from ncclscope.analysis.precedence import as_consequence, is_hang
from ncclscope.model import Finding


def account(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings with the victims of others as consequences.

    Args:
        case: The case.
        findings: The findings.
    """
    causes = [one for one in findings if one.role == "cause"]
    named = {rank for one in causes for rank in one.diverging_ranks}
    if not named or not any(map(_is_wait, causes)) or not case.graph.waits:
        return list(findings)
    kept = case.graph.without_victims(named)
    return [_without_victims(one, kept) if one in causes else one for one in findings]


def _without_victims(finding: Finding, kept: frozenset[int]) -> Finding:
    if not _is_wait(finding) or not finding.diverging_ranks:
        return finding
    ranks = tuple(rank for rank in finding.diverging_ranks if rank in kept)
    if ranks == finding.diverging_ranks:
        return finding
    return replace(finding, diverging_ranks=ranks) if ranks else as_consequence(finding)


def _is_wait(finding: Finding) -> bool:
    """Return whether a finding is about ranks that wait for others, and not about what differs."""
    return is_hang(finding) or (finding.kind == "p2p_mismatch" and finding.peers is None)
