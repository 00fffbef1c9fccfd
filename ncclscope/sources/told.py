"""What an input says of a process besides its calls, as a trace carries it on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ncclscope.foreign import integer, number, text

__all__ = ["read_told", "telling"]

_FLAGS = ("dumped", "splits", "tells")
_TEXTS = ("ended_with", "probe_failed", "unseen")


def telling(details: Mapping[str, Any]) -> dict[str, Any]:
    """What else the input said of the process, as far as the verdict asks for it."""
    told = {
        name: details[name]
        for name in (*_FLAGS, "timed_out", *_TEXTS)
        if details.get(name) is not None
    }
    if overdue := details.get("overdue"):
        told["overdue"] = sorted([key, p2p, seq] for key, p2p, seq in overdue)
    return told


def read_told(value: Any) -> dict[str, Any]:
    """The same, read."""
    if not isinstance(value, Mapping):
        return {}
    told: dict[str, Any] = {
        name: value[name] for name in _FLAGS if isinstance(value.get(name), bool)
    }
    if "timed_out" in value:
        told["timed_out"] = number(value["timed_out"])
    told |= {name: said for name in _TEXTS if (said := text(value.get(name)))}
    overdue = value.get("overdue")
    found = [
        (key, bool(entry[1]), seq)
        for entry in (overdue if isinstance(overdue, list) else ())
        if isinstance(entry, list) and len(entry) == 3
        if (key := text(entry[0])) and (seq := integer(entry[2])) is not None
    ]
    return {**told, "overdue": frozenset(found)} if found else told
