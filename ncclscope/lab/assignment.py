"""What the launcher hands down to the processes it starts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ncclscope.lab.plan import Program

__all__ = ["Assignment"]


@dataclass(frozen=True)
class Assignment:
    """One run and where its files are.

    Attributes:
        program: What is run.
        directory: Where the rings go.
        workplace: Temporary directory of the run, which is gone afterwards.
        capacity: Records a ring keeps.
        nonce: What distinguishes this run from all others.
    """

    program: Program
    directory: Path
    workplace: Path
    capacity: int
    nonce: str

    @property
    def board(self) -> Path:
        """The shared numbers."""
        return self.workplace / "progress"

    @property
    def rendezvous(self) -> Path:
        """Where the ranks find each other."""
        return self.workplace / "rendezvous"

    @property
    def log(self) -> Path:
        """What the processes print."""
        return self.workplace / "log"

    def error_file(self, rank: int) -> Path:
        """Why a rank could not start, in one line."""
        return self.workplace / f"error-{rank}"

    def to_json(self) -> str:
        """Returns the assignment as one line of text."""
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
        """Reads what :meth:`to_json` wrote."""
        fields = json.loads(text)
        return cls(
            program=Program(**fields["program"]),
            directory=Path(fields["directory"]),
            workplace=Path(fields["workplace"]),
            capacity=fields["capacity"],
            nonce=fields["nonce"],
        )
