"""One line of ``ncclscope doctor``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

Outcome = tuple[str, ...]
"""Status, state and, if something needs to change, how: what a check adds to its name."""


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes:
        section: Feature that needs it.
        name: Name of the check.
        status: ``ok``, ``off`` (missing, and optional), ``warn`` (present, with a limit that may
            matter) or ``bad`` (missing, and needed).
        state: What was found.
        enable: How to change that; empty if nothing needs to change.
    """

    section: str
    name: str
    status: str
    state: str
    enable: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the check as a JSON object."""
        return asdict(self)
