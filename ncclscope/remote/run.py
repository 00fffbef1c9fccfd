"""Build a run from nodes' summaries, with logs that query their node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ncclscope.analysis.waits.posting_order import WINDOWS
from ncclscope.errors import InputError, NothingFoundError
from ncclscope.model import Activity, Call, Communicator, Rank, Run
from ncclscope.model.device import DeviceProgress
from ncclscope.model.graphs import Graph
from ncclscope.model.text import plural
from ncclscope.readers import assemble
from ncclscope.remote.fleet import Fleet, Query
from ncclscope.remote.logs import NodePlace, RemoteLog, RemoteTrail, Shared
from ncclscope.remote.spelling import read_calls, read_steps
from ncclscope.untrusted import MAX_RANKS, integers, printable

__all__ = ["open_remote_run", "remote_ranks"]


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
    notes: list[str] = []
    found = remote_ranks(fleet, notes)
    if not found:
        raise NothingFoundError(
            f"no ring found on {plural(len(fleet.names), 'node')}"
            f"{': ' + notes[0] if notes else ''}",
            "name the directory that NCCLSCOPE_DIR had there",
        )
    # Users need the path on the node, without the node's number.
    ranks = [replace(rank, source=rank.source.partition(":")[2]) for rank in found]
    return assemble(ranks, notes=notes, sources=tuple(sources))


def remote_ranks(fleet: Fleet, notes: list[str]) -> list[Rank]:
    """Return the processes of all nodes.

    Args:
        fleet: The nodes.
        notes: Receives a note for each node that failed, and the other nodes' notes.

    Returns:
        Ranks whose source is ``NODE:PATH``: the node's number and the ring's path there.

    Raises:
        InputError: No node answers.
    """
    summaries: dict[int, Any] = {}
    failed = []
    remarks: list[str] = []
    for node, summary in fleet.summaries().items():
        name = printable(fleet.names[node])
        if isinstance(summary, str):
            failed.append(f"{name} did not answer: {printable(summary)}")
        elif isinstance(summary, dict):
            summaries[node] = summary
            remarks += [printable(str(note)) for note in summary.get("notes", ())]
    if not summaries:
        raise InputError(failed[0] if failed else "there is no node")
    notes += failed + remarks
    shared = Shared()
    ranks: list[Rank] = []
    try:
        members = _members(fleet, summaries)
        for node, summary in summaries.items():
            ranks += _ranks(fleet, node, summary, members, shared)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise InputError(
            "a node sent an invalid answer", "install the same version of ncclscope on all nodes"
        ) from None
    return ranks


def _members(fleet: Fleet, summaries: Mapping[int, Any]) -> dict[str, tuple[int, ...]]:
    """Request the ranks of each communicator, by digest, from one node each: they can be long."""
    found: dict[str, tuple[int, ...]] = {}
    asked = []
    for node, summary in summaries.items():
        for *_, digest in summary["comms"]:
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
        Graph(number, length, {key: (count, hash) for key, (count, hash) in parts.items()})
        for number, length, parts in summary["graphs"]
    ]
    comms = [
        Communicator(str(key), str(label), members[digest], str(backend))
        for key, label, backend, digest in summary["comms"]
    ]
    for ring, row in enumerate(summary["ranks"]):
        place = NodePlace(fleet, node, ring)
        ops = frozenset(map(str, row["ops"]))
        logs = {}
        for number, calls, first, running, spelled in row["logs"]:
            comm = comms[number]
            kept = read_calls(spelled, kinds, comm.key)
            ends = (int(calls), int(first), int(running))
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
    (rank, size, host, pid, gpu, labels, records, lost, started, seen, exited, alive, source) = row[
        "about"
    ]
    return Rank(
        rank=rank if rank < MAX_RANKS else -1,
        world_size=size,
        host=host,
        pid=pid,
        gpu=gpu,
        labels=labels,
        logs=logs,
        p2p={
            comms[number].key: _transfers(place, comms[number].key, spelled, kinds)
            for number, spelled in row["p2p"]
        },
        records=records,
        lost=lost,
        started_ns=started,
        last_seen_ns=seen,
        exited=exited,
        alive=alive,
        steps=RemoteTrail(place, None, read_steps(row["step"]), _steps),
        device={comms[number].key: DeviceProgress(*pending) for number, *pending in row["device"]},
        orders=dict(zip(WINDOWS, row["orders"], strict=True)),
        activities={one[0]: Activity(*one) for one in row["activities"]},
        source=f"{place.node}:{source}",
        details=row["details"],
    )


def _transfers(place: NodePlace, key: str, last: Any, kinds: Sequence[Any]) -> RemoteTrail[Call]:
    def read(answer: Any, kinds: Sequence[Any]) -> list[Call]:
        return read_calls(answer, kinds, key)

    return RemoteTrail(place, key, read(last, kinds), read)


def _steps(answer: Any, _kinds: Sequence[Any]) -> list[Any]:
    return read_steps(answer)
