"""A process that may be a worker of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ncclscope import settings
from ncclscope.untrusted import MAX_RANKS


@dataclass(frozen=True)
class Candidate:
    """A process that may be a worker.

    Attributes:
        pid: Process id.
        parent: Pid of its parent.
        title: Its title (setproctitle), or its command line.
        words: Its command line, one argument each.
        environment: Variables of interest.
        rings: Paths of the rings that it has mapped.
        python: Whether it runs Python.
        ancestors: Pids of its grandparent and further ancestors.
        name: Name of its main thread (comm).
        communicates: Whether it has threads of a communication library.
        meeting: Rendezvous options of its job, from its command line or an ancestor's.
        uses_gpu: Whether it has mapped CUDA's driver; true where that cannot be read.
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
    uses_gpu: bool = True

    def integer(self, *names: str) -> int | None:
        """Return the first of these variables that holds a plausible number."""
        for name in names:
            value = self.environment.get(name, "")
            if value.isdecimal() and int(value[:9]) < MAX_RANKS:
                return int(value[:9])
        return None

    @property
    def job(self) -> str:
        """Identifier of the job in its environment; empty if there is none."""
        names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
        rendezvous = " ".join(self.environment.get(name, "") for name in names).strip()
        # NCCLSCOPE_RUN last: a separate `ncclscope run` may have started each rank of a job.
        return rendezvous or settings.variable("RUN", self.environment)
