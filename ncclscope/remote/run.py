"""Build a run from nodes' summaries, with logs that query their node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ncclscope.engine.waits.order import WINDOWS
from ncclscope.errors import InputError, NothingFoundError
from ncclscope.model import Activity, Call, Communicator, Rank, Run
from ncclscope.model.device import DeviceProgress
from ncclscope.model.graphs import Graph
from ncclscope.model.metadata import read_about
from ncclscope.model.text import plural
from ncclscope.readers import assemble, with_unreadable
from ncclscope.remote.checked import (
    as_count,
    as_flag,
    as_hash,
    as_integer,
    as_rank,
    as_row,
    as_text,
    optional,
)
from ncclscope.remote.fleet import Fleet, LostNodeError, Query
from ncclscope.remote.logs import NodePlace, RemoteLog, RemoteTrail, Shared
from ncclscope.remote.spelling import read_calls, read_steps, read_untraced_rows
from ncclscope.untrusted import MAX_RANKS, integers, printable, texts

_FLAGS = ("beating", "stopped", "waits_for_input")
"""Details that a node adds to the metadata in a ring."""
_ABOUT: dict[str, Callable[[Any], Any]] = {
    "rank": as_rank,
    "world_size": as_integer,
    "host": as_text,
    "pid": as_integer,
    "gpu": optional(as_integer),
    "labels": texts,
    "records": as_count,
    "lost": as_count,
    "started_ns": optional(as_integer),
    "last_seen_ns": optional(as_integer),
    "exited": as_flag,
    "alive": optional(as_flag),
    "source": as_text,
}
"""Fields of a rank in the order of the message, and their readers."""
_COUNT = optional(as_count)
_DEVICE = (as_count, _COUNT, _COUNT, as_count, optional(as_integer), as_text)
_ACTIVITY = (
    *(as_text, optional(as_text), as_integer, as_integer),
    *(as_integer, optional(as_integer)),
)


@dataclass
class Unread:
    """What could not be read.

    Attributes:
        notes: A note for each node that failed, and the other nodes' notes.
        files: Number of files that the other nodes could not read.
    """

    notes: list[str] = field(default_factory=list)
    files: int = 0


def open_remote_run(fleet: Fleet, sources: Iterable[str] = ()) -> Run:
    """Build a run from the rings of all nodes.

    Args:
        fleet: The nodes.
        sources: Paths that the user named, for the run's metadata.

    Returns:
        A run like that of :func:`ncclscope.open_run`, with a note for each node that failed.

    Raises:
        NothingFoundError: No node has a ring.
        InputError: No node answers.
    """
    unread = Unread()
    found = remote_ranks(fleet, unread)
    if not found:
        raise NothingFoundError(
            f"no ring found on {plural(len(fleet.names), 'node')}"
            f"{': ' + unread.notes[0] if unread.notes else ''}",
            "name the directory that NCCLSCOPE_DIR had there",
        )
    # Users need the path on the node, without the node's number.
    ranks = [replace(rank, source=rank.source.partition(":")[2]) for rank in found]
    run = assemble(ranks, notes=unread.notes, sources=tuple(sources))
    return with_unreadable(run, unread.files)


def remote_ranks(fleet: Fleet, unread: Unread, lost: dict[int, str] | None = None) -> list[Rank]:
    """Return the processes of all nodes.

    Args:
        fleet: The nodes.
        unread: Receives what could not be read.
        lost: Nodes to leave out; receives those that fail, with the reason. If None, an invalid
            answer is an error.

    Returns:
        Ranks whose source is ``NODE:PATH``: the node's number and the path of the ring there, or
        of the file of a process without a record.

    Raises:
        InputError: No node answers, or, without `lost`, a node sends an invalid answer.
    """
    summaries: dict[int, Any] = {}
    failed = []
    remarks: list[str] = []
    for node, summary in fleet.summaries().items():
        if lost is not None and node in lost:
            continue
        name = printable(fleet.names[node])
        if isinstance(summary, str):
            failed.append(f"{name} did not answer: {printable(summary)}")
            if lost is not None:
                lost[node] = summary
        elif isinstance(summary, dict):
            summaries[node] = summary
            noted = summary.get("notes")
            remarks += [printable(str(note)) for note in noted] if isinstance(noted, list) else []
        elif lost is not None:
            lost[node] = "it sent an invalid summary"
    if not summaries:
        raise InputError(failed[0] if failed else "there is no node")
    unread.notes += failed + remarks
    while summaries:
        try:
            shared = Shared()
            members = _members(fleet, summaries)
            ranks: list[Rank] = []
            files = 0
            for node, summary in summaries.items():
                with fleet.valid(node):
                    ranks += _ranks(fleet, node, summary, members, shared)
                    # Absent in summaries of older versions.
                    ranks += read_untraced_rows(summary.get("untraced", []), node)
                    files += as_count(summary.get("refused", 0))
            unread.files = files
            return ranks
        except LostNodeError as error:
            if lost is None:
                raise
            lost[error.node] = error.message
            del summaries[error.node]
    return []


def _members(fleet: Fleet, summaries: Mapping[int, Any]) -> dict[str, tuple[int, ...]]:
    """Request the ranks of each communicator, by digest, from one node each: they can be long."""
    found: dict[str, tuple[int, ...]] = {}
    asked = []
    for node, summary in summaries.items():
        with fleet.valid(node):
            digests = [as_text(one[-1]) for one in summary["comms"]]
        for digest in digests:
            if digest not in found:
                found[digest] = ()

                def take(answer: Any, _kinds: Any, digest: str = digest) -> None:
                    found[digest] = integers(answer, MAX_RANKS) or ()

                asked.append(Query(node, ("members", digest), take))
    if asked:
        fleet.ask(asked)
    return found


def _ranks(
    fleet: Fleet,
    node: int,
    summary: Mapping[str, Any],
    members: Mapping[str, tuple[int, ...]],
    shared: Shared,
) -> Iterable[Rank]:
    kinds = summary["kinds"]
    graphs = [
        Graph(
            as_count(number),
            as_count(length),
            {key: (as_count(count), as_hash(hash)) for key, (count, hash) in parts.items()},
        )
        for number, length, parts in summary["graphs"]
    ]
    comms = [
        Communicator(as_text(key), as_text(label), members[digest], as_text(backend))
        for key, label, backend, digest in summary["comms"]
    ]
    for ring, row in enumerate(summary["ranks"]):
        place = NodePlace(fleet, node, ring)
        ops = frozenset(map(str, row["ops"]))
        logs = {}
        for number, calls, first, running, spelled in row["logs"]:
            comm = comms[number]
            kept = read_calls(spelled, kinds, comm.key)
            ends = (as_count(calls), as_count(first), as_hash(running))
            logs[comm.key] = RemoteLog(place, comm, ends, kept, ops, shared)
        rank = _rank(place, row, comms, kinds, logs)
        own = [graphs[number] for number in row["graphs"]]
        yield replace(rank, graphs={graph.number: graph for graph in own})


def _rank(
    place: NodePlace,
    row: Mapping[str, Any],
    comms: Sequence[Communicator],
    kinds: Sequence[Any],
    logs: Mapping[str, RemoteLog],
) -> Rank:
    about = dict(zip(_ABOUT, as_row(_ABOUT.values(), row["about"]), strict=True))
    about["source"] = f"{place.node}:{about['source']}"
    return Rank(
        **about,
        logs=logs,
        p2p={
            comms[number].key: _transfers(place, comms[number].key, spelled, kinds)
            for number, spelled in row["p2p"]
        },
        steps=RemoteTrail(place, None, read_steps(row["step"]), lambda rows, _: read_steps(rows)),
        device={
            comms[number].key: DeviceProgress(*as_row(_DEVICE, counts))
            for number, *counts in row["device"]
        },
        orders={
            window: optional(as_text)(order)
            for window, order in zip(WINDOWS, row["orders"], strict=True)
        },
        activities={one[0]: Activity(*as_row(_ACTIVITY, one)) for one in row["activities"]},
        details=_details(row["details"]),
    )


def _details(details: Mapping[str, Any]) -> dict[str, Any]:
    flags = {name: True for name in _FLAGS if details.get(name) is True}
    return {**read_about(details), **flags}


def _transfers(place: NodePlace, key: str, last: Any, kinds: Sequence[Any]) -> RemoteTrail[Call]:
    def read(answer: Any, kinds: Sequence[Any]) -> list[Call]:
        return read_calls(answer, kinds, key)

    return RemoteTrail(place, key, read(last, kinds), read)
