"""Short wordings with a code, where a function each would hold one line."""

from __future__ import annotations

from enum import Enum


class Phrase(Enum):
    """A code whose value is its wording, with places for values."""

    def of(self, *values: object) -> str:
        """Return the wording with these values."""
        return str(self.value).format(*values)

    def __str__(self) -> str:
        return str(self.value)
