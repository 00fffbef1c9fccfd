"""Findings: the conclusions that analyzers draw from a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ncclscope.model.call import Call, Communicator
from ncclscope.model.snapshot import Frame
from ncclscope.model.unranked import unranked


class Fact(str):
    """A line of evidence that other rules keep or drop by its ranks, without reading it.

    Attributes:
        subject: The one rank that it is about; None if it is about several, or about none.
        ranks: The ranks on whose records it rests, of those that it names by themselves.
    """

    __slots__ = ("ranks", "subject")

    subject: int | None
    ranks: tuple[int, ...]

    def __new__(cls, text: str, subject: int | None = None, ranks: Iterable[int] = ()) -> Fact:
        fact = super().__new__(cls, text)
        fact.subject, fact.ranks = subject, tuple(ranks)
        return fact

    @classmethod
    def of_call(cls, text: str, posted: Sequence[int] = (), *others: Sequence[int]) -> Fact:
        """Return a line on who posted a call, and who else it names; several ranks are a group."""
        ranks = [side[0] for side in (posted, *others) if len(side) == 1]
        return cls(text, posted[0] if len(posted) == 1 else None, ranks)

    @classmethod
    def of_rank(cls, rank: int, text: str) -> Fact:
        """Return a line on what one rank did or noted."""
        return cls(text, rank, (rank,))

    @classmethod
    def of_end(cls, rank: int, how: object) -> Fact:
        """Return how a rank ended, whatever its record holds: ``rank 3: it exited normally``."""
        return cls(f"rank {rank}: {how}", rank)


@dataclass(frozen=True)
class Blame:
    """Whom a claim names, and how surely: made by :meth:`on` and :meth:`among` alone.

    Attributes:
        ranks: Global ranks that the evidence identifies as diverging.
        candidates: Without such: the ranks of which some may have diverged.
        confidence: ``certain``, ``likely`` or ``ambiguous``.
    """

    ranks: tuple[int, ...]
    candidates: tuple[int, ...]
    confidence: str

    @classmethod
    def on(cls, ranks: Iterable[int], confidence: str = "likely") -> Blame:
        """Name ranks as diverging; none where what happened is nobody's doing."""
        return cls(tuple(ranks), (), confidence)

    @classmethod
    def among(cls, candidates: Iterable[int], confidence: str = "ambiguous") -> Blame:
        """Name nobody: some of these ranks may have diverged."""
        return cls((), tuple(candidates), confidence)


_Claim = TypeVar("_Claim", bound="Claim")


@dataclass(frozen=True)
class Claim:
    """What a rule concludes, in words to which other rules may add.

    Attributes:
        kind: Kind of the finding, such as ``op_mismatch``; docs/json.md lists them.
        summary: The claim in one or two sentences, and all that was added to them.
        blame: Whom it names, and how surely.
        notes: What was added.
    """

    kind: str
    summary: str
    blame: Blame = field(kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def diverging_ranks(self) -> tuple[int, ...]:
        """Global ranks that the evidence identifies as diverging."""
        return self.blame.ranks

    @property
    def candidate_ranks(self) -> tuple[int, ...]:
        """Without diverging ranks: the ranks of which some may have diverged."""
        return self.blame.candidates

    @property
    def confidence(self) -> str:
        """How sure it is: ``certain``, ``likely`` or ``ambiguous``."""
        return self.blame.confidence

    def naming(self: _Claim, ranks: Iterable[int]) -> _Claim:
        """Return the claim as a likely one that names these ranks."""
        return replace(self, blame=Blame.on(ranks))

    def undecided(self: _Claim, candidates: Iterable[int]) -> _Claim:
        """Return the claim as one that names no rank: some of these may have diverged."""
        return replace(self, blame=Blame.among(candidates))

    def with_note(self: _Claim, note: str) -> _Claim:
        """Return the claim with one more sentence."""
        return self._with(f"{self.summary} {note}", note)

    def with_clause(self: _Claim, clause: str) -> _Claim:
        """Return the claim with a clause before its full stop, such as ``; rank 3 waits``."""
        return self._with(f"{self.summary.rstrip('.')}{clause}.", clause)

    def of_job(self: _Claim, name: str) -> _Claim:
        """Return the claim with the name of the job that it is about, if it has one."""
        return self._with(f"{name}: {self.summary}", name) if name else self

    def _with(self: _Claim, summary: str, note: str) -> _Claim:
        return replace(self, summary=summary, notes=(*self.notes, note))


@dataclass(frozen=True)
class Finding(Claim):
    """One analyzer's claim.

    Attributes:
        comm: The communicator; None where the finding concerns a process.
        seq: First differing call on that communicator.
        odd: The call of the diverging rank; None when it posted none there.
        peers: The call of the majority.
        role: ``cause``, ``consequence`` or ``latent``.
        analyzer: Name of the analyzer; the engine enters it where the analyzer does not.
        evidence: Facts read off the records.
        inferred: Conclusions that follow from the records but are not recorded.
        extent: Number of calls concerned, such as the 17 of a swap; 0 where that has no meaning.
        seqs: First and last number of the equal calls among which those concerned are; None where
            their place is known.
        round: The calls of the round that was left out; empty without one.
        proof: What releases all that waits, in a form for JSON; None where no wait graph is known.
        aligned: Pairs of a peer's and the diverging rank's calls around the first difference,
            with None where a call has no counterpart.
        accounts_for: Calls on other communicators, as key and number, that the finding also
            explains, such as the other half of a swap.
        survived: Number of later calls that all members are known to have completed; 0 for none.
        odd_is: What ``odd`` is: ``call``, the call in question, or ``last_call``, the last call
            of a rank that never reached that one.
        awaited: Key or address of the store that ranks wait for; empty where they wait for none.
        hangs: Whether ranks or requests hang; None where the kind implies it.
        transfer: The transfer between engines that the finding concerns, in a form for JSON.
        at: Innermost frame of the first diverging rank's stack; None without a stack.
    """

    comm: Communicator | None = None
    seq: int | None = None
    odd: Call | None = None
    peers: Call | None = None
    role: str = field(kw_only=True)
    analyzer: str = ""
    evidence: tuple[str, ...] = ()
    inferred: tuple[str, ...] = ()
    extent: int = 0
    seqs: tuple[int, int] | None = None
    round: tuple[Call, ...] = ()
    aligned: tuple[tuple[Call | None, Call | None], ...] = ()
    accounts_for: tuple[tuple[str, int], ...] = ()
    survived: int = 0
    odd_is: str = "call"
    at: Frame | None = None
    awaited: str = ""
    hangs: bool | None = None
    transfer: Mapping[str, Any] | None = None
    proof: Mapping[str, Any] | None = None

    def doubted(self, *doubts: str) -> Finding:
        """Return the finding as at most a likely one, with what speaks against it."""
        limited = "likely" if self.confidence == "certain" else self.confidence
        blame = replace(self.blame, confidence=limited)
        return replace(self, blame=blame, inferred=(*self.inferred, *doubts))

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The lines of evidence of which the ranks are known; the first is on the call."""
        return tuple(line for line in self.evidence if isinstance(line, Fact))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON verdict."""
        named = unranked((*self.diverging_ranks, *self.candidate_ranks))
        return {
            "kind": self.kind,
            "summary": self.summary,
            "diverging_ranks": list(self.diverging_ranks),
            "candidate_ranks": list(self.candidate_ranks),
            **({"processes": [one.to_dict() for one in named]} if named else {}),
            "comm": None if self.comm is None else self.comm.to_dict(),
            "seq": self.seq,
            "odd": None if self.odd is None else {**self.odd.to_dict(), "is": self.odd_is},
            "at": None if self.at is None else self.at.full_site,
            "peers": None if self.peers is None else self.peers.to_dict(),
            "awaited": self.awaited or None,
            "confidence": self.confidence,
            "evidence": list(self.evidence),
            "inferred": list(self.inferred),
            "seqs": None if self.seqs is None else list(self.seqs),
            "round": [{"op": one.op, "site": one.user_site or one.site} for one in self.round]
            or None,
            "proof": None if self.proof is None else dict(self.proof),
            **({} if self.transfer is None else {"transfer": dict(self.transfer)}),
        }
