"""A case: a service, what is done to it, and what is then true of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.services.service import Service

__all__ = ["Case", "Moment", "Truth", "healthy"]

LASTS_SECONDS = 12.0


@dataclass(frozen=True)
class Truth:
    """What may be said of a service at some moment.

    Attributes:
        what: The whole truth, for a reader.
        statuses: Statuses that are right.
        kinds: Kinds of a verdict that are right.
        ranks: Ranks of which at least one is to be named.
        suspects: Ranks that may be named besides.
        process: Title of a process that is at fault, and pattern that names it.
        says: Pattern that summary or evidence is to contain, whoever is at fault.
        confidence: The highest that is right.
        killed: Statuses that are right after SIGKILL of all; those above by default.
        waits: Whether a client is sure to wait for an answer, which is checked.
    """

    what: str
    statuses: tuple[str, ...] = ("hung",)
    kinds: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    suspects: tuple[int, ...] = ()
    process: tuple[str, str] | None = None
    says: str = ""
    confidence: str = "likely"
    killed: tuple[str, ...] = ()
    waits: bool = True

    @property
    def is_healthy(self) -> bool:
        """Whether nothing hangs."""
        return "hung" not in self.statuses


def healthy(what: str, *, says: str = "") -> Truth:
    """Return the truth about a service that works, or that rests because it was asked to."""
    killed = ("ok", "unknown", "incomplete")
    return Truth(what, ("ok",), says=says, killed=killed, waits=False)


@dataclass(frozen=True)
class Moment:
    """Something that is done to a service, and what is true some seconds later."""

    truth: Truth
    act: Callable[[Service], None]
    name: str = ""
    seconds: float = LASTS_SECONDS


@dataclass(frozen=True)
class Case:
    """Moments of one service.

    Attributes:
        name: Of the case.
        report: The public report, or the mechanism, that it follows.
        moments: One after the other; all processes are killed after the last one.
        options: Of the server; see `VllmServer`.
        environment: Variables of the server.
        faults: Those of the plugin that the moments plant.
        untraced: Whether to ask an untraced service as well.
        starting: What is true while the service starts, if that is asked about.
        refused: What is true once the service has ended while it started, if that is what it does.
    """

    name: str
    moments: Sequence[Moment]
    options: Mapping[str, object] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    faults: Sequence[str] = ()
    untraced: bool = True
    starting: Truth | None = None
    refused: Truth | None = None
