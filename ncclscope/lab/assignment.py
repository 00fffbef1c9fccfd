"""Assignment that the launcher passes to the processes it starts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ncclscope.lab.plan import Program


@dataclass(frozen=True)
class Assignment:
    """One run and its files.

    Attributes:
        program: Program to run.
        directory: Directory of the rings.
        workplace: Temporary directory, removed after the run.
        capacity: Records per ring.
        nonce: Random text that distinguishes this run from all others.
    """

    program: Program
    directory: Path
    workplace: Path
    capacity: int
    nonce: str

    @property
    def board(self) -> Path:
        """File of the shared progress counters."""
        return self.workplace / "progress"

    @property
    def rendezvous(self) -> Path:
        """File of the rendezvous of the ranks."""
        return self.workplace / "rendezvous"

    @property
    def log(self) -> Path:
        """File of the output of all processes."""
        return self.workplace / "log"

    def error_file(self, rank: int) -> Path:
        """Return the file with the reason, in one line, why a rank could not start."""
        return self.workplace / f"error-{rank}"

    def to_json(self) -> str:
        """Return the assignment as one line of text."""
        return json.dumps({**vars(self), "program": self.program.to_dict()}, default=str)

    @classmethod
    def from_json(cls, text: str) -> Assignment:
        """Return the assignment that :meth:`to_json` has written."""
        fields = json.loads(text)
        paths = {name: Path(fields[name]) for name in ("directory", "workplace")}
        return cls(**{**fields, **paths, "program": Program(**fields["program"])})
