"""Processes that recorded without a rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Unranked(int):
    """A number that stands for a process without a rank, which texts name by its pid.

    It is one of the ranks that the members of the process's communicators leave free, so that it
    can be used wherever a rank can. Which of them the process has is not known.

    Args:
        number: The number.
        host: Host name of the process.
        pid: Its process id.
    """

    host: str
    pid: int

    def __new__(cls, number: int, host: str = "", pid: int = 0) -> Unranked:
        """Create the number."""
        made = super().__new__(cls, number)
        made.host, made.pid = host, pid
        return made

    def __str__(self) -> str:
        """Return what follows the word ``rank`` in a text."""
        return f"with pid {self.pid}"

    def __format__(self, spec: str) -> str:
        """Return the text, or the number in a given format."""
        return int(self).__format__(spec) if spec else str(self)

    def __getnewargs__(self) -> tuple[int, str, int]:  # type: ignore[override]
        """Return what a copy is made of."""
        return int(self), self.host, self.pid

    def to_dict(self) -> dict[str, Any]:
        """Return the process in the terms of the JSON verdict."""
        return {"number": int(self), "host": self.host, "pid": self.pid}


def unranked(numbers: Iterable[int]) -> list[Unranked]:
    """Return those numbers that stand for processes without a rank, in order."""
    return sorted({one for one in numbers if isinstance(one, Unranked)})
