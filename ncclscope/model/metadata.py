"""What an input says of a process besides its calls, as a trace carries it on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ncclscope.untrusted import integer, number, text, texts

__all__ = ["DAMAGED", "metadata_of", "read_about", "read_metadata", "read_uses"]

DAMAGED = "damaged"
"""Kind of what is not seen because the record of it cannot be read."""

_FLAGS = ("dumped", "splits", "tells")
_TEXTS = ("ended_with", "probe_failed")
_USES = ("probes", "unseen")
_RING_TEXTS = ("device_progress", "run")
_NOT_OF_RINGS = (
    *(*_FLAGS, "beating", "dump", "format", "gpu_spins", "idle_s", "numbered", "overdue"),
    *("stated", "still_seconds", "stopped", "timed_out", "written_ns"),
)


def metadata_of(details: Mapping[str, Any]) -> dict[str, Any]:
    """What else the input said of the process, as far as the verdict asks for it."""
    told = {
        name: details[name]
        for name in (*_FLAGS, "timed_out", *_TEXTS, *_USES)
        if details.get(name) is not None
    }
    if overdue := details.get("overdue"):
        told["overdue"] = sorted([key, p2p, seq] for key, p2p, seq in overdue)
    return told


def read_metadata(value: Any) -> dict[str, Any]:
    """The same, read."""
    if not isinstance(value, Mapping):
        return {}
    told: dict[str, Any] = {
        name: value[name] for name in _FLAGS if isinstance(value.get(name), bool)
    }
    if "timed_out" in value:
        told["timed_out"] = number(value["timed_out"])
    told |= {name: said for name in _TEXTS if (said := text(value.get(name)))}
    told |= read_uses(value)
    overdue = value.get("overdue")
    found = [
        (key, bool(entry[1]), seq)
        for entry in (overdue if isinstance(overdue, list) else ())
        if isinstance(entry, list) and len(entry) == 3
        if (key := text(entry[0])) and (seq := integer(entry[2])) is not None
    ]
    return {**told, "overdue": frozenset(found)} if found else told


def read_uses(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a process says of its probes and of what they do not see.

    Returns:
        ``probes``: by name, ``{"state": "on" | "ended" | "refused" | "absent", "why": text}``.
        ``unseen``: a list of ``{"kind", "text", "comms": [key], "since_ns"}``; older rings have
        one text there, which is of kind ``other``. What was not said is not there.
    """
    uses: dict[str, Any] = {}
    probes = about.get("probes")
    if isinstance(probes, Mapping):
        found = {name: texts(entry) for name, entry in probes.items() if text(name)}
        uses["probes"] = {
            name: {"state": entry["state"], "why": entry.get("why", "")}
            for name, entry in found.items()
            if "state" in entry
        }
    unseen = about.get("unseen")
    if said := text(unseen):
        uses["unseen"] = [{"kind": "other", "text": said, "comms": [], "since_ns": None}]
    elif isinstance(unseen, list):
        uses["unseen"] = [
            {
                "kind": text(entry.get("kind")) or "other",
                "text": said,
                "comms": _keys(entry.get("comms")),
                "since_ns": integer(entry.get("since_ns")),
            }
            for entry in unseen
            if isinstance(entry, Mapping) and (said := text(entry.get("text")))
        ]
    return uses


def read_about(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the details in a ring's self-description, those that anybody asks for validated.

    What only other inputs say, or what is concluded later, is left out: a ring that says it
    would be believed.
    """
    known = (*_USES, *_TEXTS, *_RING_TEXTS, *_NOT_OF_RINGS)
    details = {name: value for name, value in about.items() if name not in known}
    for name in (*_TEXTS, *_RING_TEXTS):
        if (said := text(about.get(name))) is not None:
            details[name] = said
    return {**details, **read_uses(about)}


def _keys(value: Any) -> list[str]:
    return [key for one in value if (key := text(one))] if isinstance(value, list) else []
