"""A process that may be a worker of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ncclscope.untrusted import MAX_RANKS

__all__ = ["Candidate"]


@dataclass(frozen=True)
class Candidate:
    """A process that may be a worker.

    Attributes:
        pid: Process id.
        parent: Its parent's.
        title: What it calls itself, or its command line.
        words: Its command line.
        environment: Variables of interest.
        rings: Rings that it has mapped.
        python: Whether it runs Python.
        ancestors: Its parent's parent, and so on.
        name: The kernel's name for its main thread.
        communicates: Whether it has threads of a communication library.
        meeting: Where the ranks of its job meet, as its command line or that of an ancestor says.
    """

    pid: int
    parent: int = 0
    title: str = ""
    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    rings: tuple[str, ...] = ()
    python: bool = False
    ancestors: tuple[int, ...] = ()
    name: str = ""
    communicates: bool = False
    meeting: str = ""

    def integer(self, *names: str) -> int | None:
        """The first of some variables that is a plausible number."""
        for name in names:
            value = self.environment.get(name, "")
            if value.isdecimal() and int(value[:9]) < MAX_RANKS:
                return int(value[:9])
        return None

    @property
    def job(self) -> str:
        """What the workers of one job share, where their environment says so."""
        names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
        told = " ".join(self.environment.get(name, "") for name in names).strip()
        # Each rank of a job may have been started by an `ncclscope run` of its own.
        return told or self.environment.get("NCCLSCOPE_RUN", "")
