"""Processes that have recorded what they do besides their calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ncclscope.model import Activity, Rank

__all__ = ["NOW", "Acts", "with_activities"]

Acts = Mapping[str, tuple[float, float | None, str | None, int]]
"""Since and until in seconds, detail and number, by name."""

NOW = 100.0
"""Seconds from the start of a process to its last heartbeat."""


def with_activities(process: Rank, acts: Acts, **changes: Any) -> Rank:
    """Return a living process with activities; times count from its start."""
    base = process.started_ns or 0
    activities = {
        name: Activity(
            name,
            detail,
            number,
            count=1,
            since_ns=base + int(since * 1e9),
            until_ns=None if until is None else base + int(until * 1e9),
        )
        for name, (since, until, detail, number) in acts.items()
    }
    changes = {"alive": True, "last_seen_ns": base + int(NOW * 1e9), **changes}
    return replace(process, activities=activities, **changes)
