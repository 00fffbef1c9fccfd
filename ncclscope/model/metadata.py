"""Metadata of a process besides its calls, as inputs contain it and traces pass it on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ncclscope.untrusted import integer, number, printable, printable_document, text, texts

DAMAGED = "damaged"
"""Kind of unseen calls whose records cannot be read."""

UNCHECKED = "unchecked"
"""Of a ring of an older version, whose records have no check: no verdict on them is certain."""

FRONTEND = "frontend"
"""Role of a process that receives requests and passes them to an engine, such as an API server."""
COORDINATOR = "coordinator"
"""Role of a process that sends messages between the engines of a service."""
SERVERS = (FRONTEND, COORDINATOR)
"""Roles of the processes of a service that have no workers."""
SERVICE = ("engine", *SERVERS)
"""Roles of the processes of a service that are no ranks."""

ENDS = "ends"
"""Of a launcher: how the processes that it started ended by themselves, a status by its pid."""
LAUNCHER = "ncclscope run"
"""The launcher whose end is that of the whole program."""
_MOST_ENDS = 4096

_FLAGS = ("dumped", "splits", "tells", "unsized")
_TEXTS = ("ended_with", "launcher", "probe_failed")
_USES = ("probes", "unseen")
_RING_TEXTS = ("device_progress", "run")
_NOT_OF_RINGS = (
    *(
        *_FLAGS,
        "beating",
        "dump",
        "exit_status",
        "format",
        "gpu_spins",
        "idle_s",
        "numbered",
        "overdue",
        "own_rank",
    ),
    *("quiet_seconds", "stated", "still_seconds", "stopped", "timed_out"),
    *("untraced", "waits_for_input", "written_ns"),
)


def metadata_of(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a process that verdicts use, in a form for JSON."""
    metadata = {
        name: details[name]
        for name in (*_FLAGS, "timed_out", "exit_status", *_TEXTS, *_USES, ENDS)
        if details.get(name) is not None
    }
    if overdue := details.get("overdue"):
        metadata["overdue"] = sorted([key, p2p, seq] for key, p2p, seq in overdue)
    return metadata


def read_metadata(value: Any) -> dict[str, Any]:
    """Validate and return what :func:`metadata_of` has written."""
    if not isinstance(value, Mapping):
        return {}
    metadata: dict[str, Any] = {
        name: value[name] for name in _FLAGS if isinstance(value.get(name), bool)
    }
    if "timed_out" in value:
        metadata["timed_out"] = number(value["timed_out"])
    if (status := integer(value.get("exit_status"))) is not None:
        metadata["exit_status"] = status
    metadata |= {name: valid for name in _TEXTS if (valid := text(value.get(name)))}
    metadata |= read_uses(value) | _read_ends(value)
    overdue = value.get("overdue")
    found = [
        (key, bool(entry[1]), seq)
        for entry in (overdue if isinstance(overdue, list) else ())
        if isinstance(entry, list) and len(entry) == 3
        if (key := text(entry[0])) and (seq := integer(entry[2])) is not None
    ]
    return {**metadata, "overdue": frozenset(found)} if found else metadata


def read_uses(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a process reports about its probes and the calls that they do not see.

    Returns:
        ``probes``: by name, ``{"state": "on" | "ended" | "refused" | "absent", "why": text}``.
        ``unseen``: a list of ``{"kind", "text", "comms": [key], "since_ns"}``; older rings have
        a single text there, which gets the kind ``other``. Keys without a report are absent.
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
    if valid := text(unseen):
        uses["unseen"] = [{"kind": "other", "text": valid, "comms": [], "since_ns": None}]
    elif isinstance(unseen, list):
        uses["unseen"] = [
            {
                "kind": text(entry.get("kind")) or "other",
                "text": valid,
                "comms": _keys(entry.get("comms")),
                "since_ns": integer(entry.get("since_ns")),
            }
            for entry in unseen
            if isinstance(entry, Mapping) and (valid := text(entry.get("text")))
        ]
    return uses


def read_about(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the details in a ring's self-description; validate those that verdicts use.

    Drop details that only other inputs contain or that are inferred later: a ring must not be able
    to forge them.
    """
    known = (*_USES, *_TEXTS, *_RING_TEXTS, *_NOT_OF_RINGS, ENDS)
    details = {
        printable(name): printable_document(value)
        for name, value in about.items()
        if name not in known
    }
    for name in (*_TEXTS, *_RING_TEXTS):
        if (valid := text(about.get(name))) is not None:
            details[name] = valid
    return {**details, **read_uses(about), **_read_ends(about)}


def _read_ends(about: Mapping[str, Any]) -> dict[str, Any]:
    ends = about.get(ENDS)
    if not isinstance(ends, Mapping) or len(ends) > _MOST_ENDS:
        return {}
    found = {
        pid: status
        for pid, value in ends.items()
        if text(pid) and (status := integer(value)) is not None
    }
    return {ENDS: found} if found else {}


def _keys(value: Any) -> list[str]:
    return [key for one in value if (key := text(one))] if isinstance(value, list) else []
