"""One line of ``ncclscope doctor``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Check"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        section: What it is needed for.
        name: What it is.
        status: ``ok``, ``off`` (not there, and not needed), ``warn`` (there, with a limit that may
            matter) or ``bad`` (wanted, and not there).
        state: What was found.
        enable: What would change that; empty when nothing need.
    """

    section: str
    name: str
    status: str
    state: str
    enable: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns the check, in a form for JSON."""
        return asdict(self)
