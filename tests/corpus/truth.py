"""What was planted in a case, in the terms of the verdict that it should get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["AMBIGUOUS", "CERTAIN", "HEALTHY", "LIKELY", "UNDECIDED", "Cause", "Truth", "status_of"]

CERTAIN, LIKELY, AMBIGUOUS = "certain", "likely", "ambiguous"

HANGS = frozenset(
    {"not_joined", "dead_rank", "order_cycle", "stalled", "init_stalled", "transfer_stalled"}
)
"""Kinds under which the sequences agree as far as they go."""


@dataclass(frozen=True)
class Cause:
    """One root cause.

    Attributes:
        kinds: Kinds that are right, with the highest confidence allowed for each.
        ranks: Ranks that the records single out.
        candidates: Where they single out none: the ranks among which it lies.
        groups: Labels of communicators on which it may be reported; empty for any.
        seqs: Call numbers that are right; empty where the number means nothing.
        site: Call site of the diverging rank, without directories; empty where none is asked for.
        user_site: Likewise the first line of the user's own program.
        extent: How many calls the summary must count; 0 where it need not.
    """

    kinds: Mapping[str, str]
    ranks: tuple[int, ...] = ()
    candidates: tuple[int, ...] = ()
    groups: tuple[str, ...] = ()
    seqs: tuple[int, ...] = ()
    site: str = ""
    user_site: str = ""
    extent: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the cause in a form for JSON."""
        return {
            "kinds": dict(self.kinds),
            "diverging_ranks": list(self.ranks),
            "candidate_ranks": list(self.candidates),
            "comms": list(self.groups),
            "seqs": list(self.seqs),
            "site": self.site,
            "user_site": self.user_site,
            "extent": self.extent,
        }


@dataclass(frozen=True)
class Truth:
    """Description of one run.

    Attributes:
        status: Every status that is right.
        causes: The root causes, each of which must be reported; none in a healthy run.
        latent: Kinds that may be reported besides, as latent.
        optional: Causes that may be reported besides: whether they are such the records cannot say.
    """

    status: tuple[str, ...]
    causes: tuple[Cause, ...] = ()
    latent: tuple[str, ...] = ()
    optional: tuple[Cause, ...] = ()

    def capped(self, confidence: str) -> Truth:
        """Return the same truth with a lower limit on the confidence."""
        causes = tuple(
            replace(cause, kinds=dict.fromkeys(cause.kinds, confidence)) for cause in self.causes
        )
        return replace(self, causes=causes)

    def also(self, other: Truth) -> Truth:
        """Return the truth of a run with the causes of both."""
        status = tuple(dict.fromkeys((*self.status, *other.status)))
        return replace(self, status=status, causes=(*self.causes, *other.causes))

    def maybe(self, other: Truth) -> Truth:
        """Return the truth of a run in which the causes of another may be reported, too."""
        return replace(self, optional=(*self.optional, *other.causes))

    def to_dict(self) -> dict[str, Any]:
        """Return the truth in a form for JSON."""
        return {
            "status": list(self.status),
            "causes": [cause.to_dict() for cause in self.causes],
            "latent": list(self.latent),
            "optional": [cause.to_dict() for cause in self.optional],
        }


HEALTHY = Truth(("ok",))
UNDECIDED = Truth(("ok", "unknown"))
"""No cause may be named; whether the run is healthy the records cannot say."""


def status_of(kinds: Mapping[str, str]) -> tuple[str, ...]:
    """Return the statuses that go with kinds: ``hung`` where the sequences agree."""
    return tuple(sorted({"hung" if kind in HANGS else "diverged" for kind in kinds}))
