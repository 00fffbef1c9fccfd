"""Assignment that the launcher passes to the processes it starts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ncclscope.lab.plan import Program

__all__ = ["Assignment"]


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
        return json.dumps(
            {
                "program": self.program.to_dict(),
                "directory": str(self.directory),
                "workplace": str(self.workplace),
                "capacity": self.capacity,
                "nonce": self.nonce,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Assignment:
        """Return the assignment that :meth:`to_json` has written."""
        fields = json.loads(text)
        return cls(
            program=Program(**fields["program"]),
            directory=Path(fields["directory"]),
            workplace=Path(fields["workplace"]),
            capacity=fields["capacity"],
            nonce=fields["nonce"],
        )
