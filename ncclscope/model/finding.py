"""What an analyzer concludes from a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ncclscope.model.call import Call, Communicator
from ncclscope.model.snapshot import Frame

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """One analyzer's claim.

    Attributes:
        kind: One of the kinds of the contract, such as ``op_mismatch``.
        summary: One sentence for a person.
        comm: Where it happened; None where it is about a process.
        seq: First differing call on that communicator.
        diverging_ranks: Global ranks the records single out.
        candidate_ranks: When they single out none: the ranks among which it lies.
        odd: What the diverging rank posted; None when it posted nothing there.
        peers: What the majority posted.
        confidence: ``certain``, ``likely`` or ``ambiguous``.
        role: ``cause``, ``consequence`` or ``latent``.
        analyzer: Name of the analyzer.
        evidence: Statements read off the records.
        inferred: Statements that do not stand in the records but follow from them.
        extent: How many calls are concerned, such as the 17 of a swap; 0 where it has no
            meaning.
        aligned: Calls around the first difference side by side, a peer's and the diverging
            rank's, with None where one of them has no counterpart.
        accounts_for: Calls on other communicators, as key and number, that the finding explains
            too: the other half of a swap.
        survived: Calls after it that all members are known to have completed; 0 for none.
        odd_is: What ``odd`` is: ``call``, the call in question, or ``last_call``, the last that
            a rank posted which never came to that one.
        at: Where the first diverging rank is now, as its stack says; None without one.
    """

    kind: str
    summary: str
    comm: Communicator | None = None
    seq: int | None = None
    diverging_ranks: tuple[int, ...] = ()
    candidate_ranks: tuple[int, ...] = ()
    odd: Call | None = None
    peers: Call | None = None
    confidence: str = "certain"
    role: str = "cause"
    analyzer: str = ""
    evidence: tuple[str, ...] = ()
    inferred: tuple[str, ...] = ()
    extent: int = 0
    aligned: tuple[tuple[Call | None, Call | None], ...] = ()
    accounts_for: tuple[tuple[str, int], ...] = ()
    survived: int = 0
    odd_is: str = "call"
    at: Frame | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields of the JSON verdict."""
        return {
            "kind": self.kind,
            "summary": self.summary,
            "diverging_ranks": list(self.diverging_ranks),
            "candidate_ranks": list(self.candidate_ranks),
            "comm": None if self.comm is None else self.comm.to_dict(),
            "seq": self.seq,
            "odd": None if self.odd is None else {**self.odd.to_dict(), "is": self.odd_is},
            "at": None if self.at is None else self.at.full_site,
            "peers": None if self.peers is None else self.peers.to_dict(),
            "confidence": self.confidence,
            "evidence": list(self.evidence),
            "inferred": list(self.inferred),
        }
