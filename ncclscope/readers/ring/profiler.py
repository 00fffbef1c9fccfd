"""Read what NCCL's profiler plugin adds to a ring: counts, and what it knows of communicators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ncclscope.model import Communicator
from ncclscope.ring import layout
from ncclscope.ring.reader import RingFile
from ncclscope.untrusted import integer, number, parse_object, rank_number

_REPLAYS = (
    "replays of CUDA graphs are not seen: NCCL reported their calls once, when they were captured"
)
_NAMES = ('"comm_rank"', '"made_before"', '"replays_unseen"')
"""What only the plugin writes, so that other descriptions need not be parsed again."""


@dataclass(frozen=True)
class ProfilerNotes:
    """What the plugin reported in one ring.

    Attributes:
        carried: Number of collectives that NCCL reported, by key.
        places: Own rank in communicators, by key.
        late: Numbers of the communicators with calls before recording began.
        before: Number of these calls, by key and operation, as far as NCCL reported it.
        unseen: Entries for the process's list of what is not recorded.
    """

    carried: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, int] = field(default_factory=dict)
    late: frozenset[int] = frozenset()
    before: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    unseen: tuple[Mapping[str, Any], ...] = ()


def profiler_notes(ring: RingFile, found: Mapping[int, Communicator]) -> ProfilerNotes:
    """Return what the plugin reported in a ring.

    Args:
        ring: The ring.
        found: Its communicators, by number.
    """
    carried = {found[one].key: count for one, count in ring.carried.items() if one in found}
    places: dict[str, int] = {}
    late = set()
    captured = []
    before: dict[str, dict[str, int]] = {}
    for index, about in _descriptions(ring):
        if index not in found:
            continue
        key = found[index].key
        if (place := rank_number(about.get("comm_rank"))) >= 0:
            places[key] = place
        if about.get("joined_late") is True:
            late.add(index)
        if about.get("replays_unseen") is True:
            captured.append(key)
        made = about.get("made_before")
        for op, count in made.items() if isinstance(made, dict) else ():
            if (known := integer(count)) is not None and 0 <= known < layout.MOST:
                before.setdefault(key, {})[str(op)] = known
    entry = {"kind": "graph_replays", "text": _REPLAYS, "comms": captured, "since_ns": None}
    unseen = (entry,) if captured else ()
    return ProfilerNotes(carried, places, frozenset(late), before, unseen)


def _descriptions(ring: RingFile) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the descriptions that the plugin wrote, with the communicator's number."""
    texts = ring.texts.get(layout.KIND_COMM, [])
    changes = ring.texts.get(layout.KIND_COMM_UPDATE, [])
    for index, spelled in (*enumerate(texts, 1), *((0, change) for change in changes)):
        if any(name in spelled for name in _NAMES):
            about = parse_object(spelled)
            yield index or number(about.get("comm")), about
