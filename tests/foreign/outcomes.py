"""How tests ended, and what is kept of that between two runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock

__all__ = ["Case", "Outcome", "Outcomes"]


@dataclass(frozen=True, order=True)
class Case:
    """One of torch's tests, on a number of ranks.

    Attributes:
        name: The method.
        ranks: World size.
    """

    name: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.name} ({self.ranks} ranks)"


@dataclass(frozen=True)
class Outcome:
    """How a test ended.

    Attributes:
        ending: ``passed``, ``skipped``, ``failed``, ``died`` or ``timed out``.
        detail: The reason of a skip, the exception of a failure.
        seconds: How long it ran, without the import of torch.
        status: The status of the verdict on its rings; empty where it was not traced.
        summary: That verdict in a sentence.
    """

    ending: str
    detail: str = ""
    seconds: float = 0.0
    status: str = ""
    summary: str = ""


class Outcomes(dict[Case, Outcome]):
    """Outcomes by test, kept in a file of JSON Lines.

    Args:
        file: Where to; what it holds already is read.
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self._lock = Lock()
        if file.exists():
            for line in file.read_text().splitlines():
                case, outcome = json.loads(line)
                self[Case(**case)] = Outcome(**outcome)

    def keep(self, case: Case, outcome: Outcome) -> None:
        """Add an outcome, or replace an earlier one."""
        with self._lock:
            self[case] = outcome
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as file:
                file.write(json.dumps([asdict(case), asdict(outcome)]) + "\n")
