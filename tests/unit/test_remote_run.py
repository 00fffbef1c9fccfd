"""Rings examined where they are say the same as rings in one place."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.runners.rings import DIVERGING, make_rings
from ncclscope import Run, Tracer, diagnose, open_run
from ncclscope.errors import DamagedFileError, InputError, NcclscopeError, NothingFoundError
from ncclscope.native.threads import own
from ncclscope.remote.fleet import Fleet
from ncclscope.remote.run import open_remote_run
from ncclscope.remote.spelling import Kinds, pack, read_calls, unpack
from ncclscope.ring import layout
from tests.support.remote_nodes import LocalClient
from tests.support.rings import fill, tracer_in
from tests.unit.host_device import HostDevice, post


def spread(directory: Path, nodes: int) -> dict[str, Path]:
    """Give each node its part of the rings of a directory."""
    found = {}
    rings = sorted(directory.glob("*.ring"), key=lambda path: path.stat().st_mtime_ns)
    for number in range(nodes):
        place = found[f"node-{number}"] = directory / f"node-{number}"
        place.mkdir()
        for ring in rings[number * len(rings) // nodes : (number + 1) * len(rings) // nodes]:
            ring.rename(place / ring.name)
    return found


def document(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(diagnose(run).to_dict()))
    return found


def both(directory: Path, nodes: int = 3) -> tuple[dict[str, Any], dict[str, Any], Fleet]:
    """Return the verdicts on rings in one place, and on the same rings on nodes."""
    places = spread(directory, nodes)
    fleet = Fleet(LocalClient(places))
    return (
        document(open_run(directory)),
        document(open_remote_run(fleet, [str(directory)])),
        fleet,
    )


def test_a_difference_long_ago_in_wrapped_rings(rings: Path) -> None:
    make_rings(rings / "job", 16, capacity=4096)
    local, remote, fleet = both(rings / "job", 2)
    assert remote == local
    assert remote["verdict"]["diverging_ranks"] == [DIVERGING]
    # A few hundred bytes a rank, where a ring has half a million.
    assert fleet.traffic.total < 16 * 4096
    assert fleet.traffic.rounds < 40


def test_what_is_asked_does_not_grow_with_the_ranks(rings: Path) -> None:
    rounds = []
    for ranks in (16, 64):
        make_rings(rings / str(ranks), ranks, capacity=1024)
        local, remote, fleet = both(rings / str(ranks), ranks // 8)
        assert remote == local
        rounds.append((fleet.traffic.rounds, fleet.traffic.questions))
    assert rounds[1][0] <= rounds[0][0] + 2
    assert rounds[1][1] <= 4 * rounds[0][1]


def test_transfers_steps_and_engines(rings: Path) -> None:
    for rank in range(2):
        tracer = Tracer(rings, rank=rank, world_size=2, heartbeat=False, capacity=1024)
        comm = tracer.communicator("K", "pp:0", [0, 1], "nccl")
        for step in range(5):
            tracer.step(step, tokens=3 + step, dummy=step % 2 == 0)
            tracer.record(comm, "all_reduce", shape=(step + 1,), dtype="float32", redop="sum")
            op, peer = ("send", 1) if rank == 0 else ("recv", 0)
            shape = (9,) if (rank, step) == (1, 3) else (8,)
            tracer.record(comm, op, shape=shape, dtype="float32", peer=peer)
        tracer.close()
    engine = Tracer(rings, rank=-1, heartbeat=False, capacity=1024)
    engine.close()
    local, remote, _ = both(rings, 2)
    assert remote == local
    assert remote["verdict"]["kind"] == "p2p_mismatch"


def test_calls_that_devices_count(rings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLSCOPE_DEVICE_PROGRESS", "entered")
    for rank in range(3):
        tracer = Tracer(rings, rank=rank, world_size=3, heartbeat=False, capacity=1024)
        device = HostDevice(tracer, enters=True)
        comm = tracer.communicator("K", "tp:0", range(3), "nccl")
        for _ in range(9):
            post(tracer, comm)
        device.run(14 if rank == 1 else 15)  # in call 8; of one, before it
        tracer.ring._put_word(layout.HEADER_HEARTBEAT, time.time_ns() + 60_000_000_000)
    monkeypatch.setattr("ncclscope.readers.ring.ranks.is_alive", lambda *_: False)
    local, remote, _ = both(rings, 2)
    assert remote == local
    assert remote["table"][1]["comms"]["tp:0"]["device"]["entered"] == 7
    assert (remote["verdict"]["kind"], remote["verdict"]["diverging_ranks"]) == ("not_joined", [1])


def test_an_order_swap_where_completion_is_not_reported(
    rings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(4):
        tracer = Tracer(rings, rank=rank, world_size=4, heartbeat=False, capacity=1024)
        world = tracer.communicator("W", "world", range(4), "nccl")
        pair = tracer.communicator(
            f"P{rank // 2}", f"tp:{rank // 2}", range(rank // 2 * 2, rank // 2 * 2 + 2), "nccl"
        )
        for step in range(50):
            for comm in (pair, world) if (rank, step) == (3, 49) else (world, pair):
                tracer.record(comm, "all_reduce", shape=(step + 1,), dtype="float32", redop="sum")
        tracer.ring._put_word(layout.HEADER_HEARTBEAT, time.time_ns() + 60_000_000_000)
    monkeypatch.setattr("ncclscope.readers.ring.ranks.is_alive", lambda *_: False)
    local, remote, fleet = both(rings, 2)
    assert remote == local
    assert (remote["verdict"]["kind"], remote["verdict"]["diverging_ranks"]) == ("order_cycle", [3])
    assert fleet.traffic.rounds < 20


def test_replays_of_graphs(rings: Path) -> None:
    for rank in range(3):
        tracer = Tracer(rings, rank=rank, world_size=3, heartbeat=False, capacity=1024)
        comm = tracer.communicator("K", "tp:0", range(3), "nccl")
        graphs = []
        for rows in (4, 8):
            begun = tracer.graphs.begin()
            for place in range(30):
                tracer.record(comm, "all_reduce", shape=(rows, place + 1), captured=True)
            graph = tracer.graphs.end(begun)
            assert graph is not None
            graphs.append(graph)
        for step in range(100):
            graphs[int((rank, step) == (1, 70))].replay()
        tracer.close()
    local, remote, _ = both(rings, 2)
    assert remote == local
    assert remote["verdict"]["diverging_ranks"] == [1]
    assert remote["verdict"]["odd"]["replay"]["graph"] == 2


def test_logs_answer_as_those_of_a_ring(rings: Path) -> None:
    tracer = tracer_in(rings, capacity=1024)
    comm = tracer.communicator("K", "tp:0", [0], "nccl")
    fill(tracer, comm, 1, 3000)
    tracer.close()
    places = spread(rings, 1)
    (near,) = open_run(rings).ranks
    (far,) = open_remote_run(Fleet(LocalClient(places))).ranks
    one, other = near.logs["K"], far.logs["K"]
    assert (one.first, one.calls) == (other.first, other.calls)
    assert one.first > 1900
    for seq in (one.first - 1, one.first, 2048, 2049, 2500, one.calls):
        assert one.fingerprint(seq) == other.fingerprint(seq)
    for start, stop in ((1, 2100), (2200, 2203), (2900, 5000), (2999, 3000), (7, 3)):
        assert list(one.span(start, stop)) == list(other.span(start, stop))
        assert list(one.sites(start, stop)) == list(other.sites(start, stop))
        assert list(one.positions(start, stop)) == list(other.positions(start, stop))
        assert list(one.threads(start, stop)) == list(other.threads(start, stop))
    assert {*other.threads(2900, 5000)} == {own.number} != {0}
    assert list(one.signatures(2100, 2400)) == list(other.signatures(2100, 2400))
    with pytest.raises(IndexError):
        other.call(one.first - 1)
    with pytest.raises(IndexError):
        other.call(one.calls + 1)


def test_a_node_that_fails_is_a_note_and_its_ranks_are_missing(rings: Path) -> None:
    make_rings(rings / "job", 24, capacity=1024)
    client = LocalClient(spread(rings / "job", 3))
    client.lost.add(2)
    found = document(open_remote_run(Fleet(client)))
    assert found["ranks"]["missing"] == list(range(16, 24))
    assert found["verdict"]["diverging_ranks"] == [DIVERGING]
    assert "node-2 did not answer: gone" in found["notes"]


class Junk(LocalClient):
    """Nodes that send nonsense."""

    def __init__(self, directories: Mapping[str, Path], summary: bytes) -> None:
        super().__init__(directories)
        self._summary = summary

    def summaries(self) -> dict[int, bytes | str]:
        return {0: self._summary}


@pytest.mark.parametrize(
    "summary",
    [
        b"",
        b"junk",
        zlib.compress(b"{"),
        pack({}),
        pack({"kinds": [], "comms": [["K"]], "ranks": []}),
        pack({"kinds": [], "comms": [], "ranks": [{"about": [1]}]}),
        pack({"kinds": [], "comms": [], "ranks": [None]}),
        pack([1, 2, 3]),
    ],
)
def test_nonsense_is_one_line(tmp_path: Path, summary: bytes) -> None:
    with pytest.raises((InputError, DamagedFileError)) as caught:
        open_remote_run(Fleet(Junk({"a": tmp_path}, summary)))
    assert "\n" not in str(caught.value)


def places_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each part of a document."""
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in parts:
        yield (*place, key)
        if isinstance(part, dict | list):
            yield from places_in(part, (*place, key))


class Altered(LocalClient):
    """A node that sends another summary, and answers as through Ray: errors are of one kind."""

    summary: Any = None

    def summaries(self) -> dict[int, bytes | str]:
        found = super().summaries()
        return found if self.summary is None else {0: pack(self.summary)}

    def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        try:
            return super().ask(requests)
        except LookupError:
            raise InputError("the node has no such thing") from None


@pytest.mark.parametrize("wrong", [None, "x", -5, 1 << 63])
def test_a_field_of_another_type_is_one_line_or_none(rings: Path, wrong: Any) -> None:
    """Each field of a summary in turn: the job is diagnosed, or the message is refused."""
    tracer = tracer_in(rings)
    comm = tracer.communicator("K", "tp:0", [0], "nccl")
    tracer.step(1, tokens=3)
    fill(tracer, comm, 1, 3)
    tracer.record(comm, "send", peer=0, shape=(2,), dtype="float32")
    tracer.activity("dequeue").begin("execute", 2)
    tracer.close()
    client = Altered({"a": rings})
    summary = unpack(client.summaries()[0])  # type: ignore[arg-type]
    refused = 0
    for place in places_in(summary):
        client.summary = json.loads(json.dumps(summary))
        holder = client.summary
        for key in place[:-1]:
            holder = holder[key]
        holder[place[-1]] = wrong
        try:
            json.dumps(diagnose(open_remote_run(Fleet(client))).to_dict())
        except NcclscopeError:
            refused += 1
    assert refused > 20


def test_a_node_that_counts_calls_without_end_is_not_believed(rings: Path) -> None:
    make_rings(rings / "job", 2, capacity=1024)
    client = LocalClient({"a": rings / "job"})
    summary = unpack(client.summaries()[0])  # type: ignore[arg-type]
    for rank in summary["ranks"]:
        for number, log in enumerate(rank["logs"]):
            log[1:3] = [(1 << 40) + number, 1]
    client.summaries = lambda: {0: pack(summary)}  # type: ignore[method-assign]

    with pytest.raises(NcclscopeError):
        diagnose(open_remote_run(Fleet(client)))


def test_an_answer_that_is_nonsense(rings: Path) -> None:
    make_rings(rings / "job", 16, capacity=1024)
    client = LocalClient(spread(rings / "job", 2))
    run = open_remote_run(Fleet(client))
    client.ask = lambda requests: {  # type: ignore[method-assign]
        node: pack({"kinds": [], "answers": []}) for node in requests
    }
    with pytest.raises(InputError, match="sent an invalid answer"):
        diagnose(run)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(NothingFoundError, match="no ring found on 1 node"):
        open_remote_run(Fleet(LocalClient({"a": tmp_path})))
    client = LocalClient({"a": tmp_path})
    client.lost.add(0)
    with pytest.raises(InputError, match="a did not answer: gone"):
        open_remote_run(Fleet(client))


def test_calls_are_spelled_and_read(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("K", "tp:0", [0], "nccl")
    fill(tracer, comm, 1, 50)
    tracer.record(
        comm, "all_to_all", shape=(4, 2), sizes=(1, 3), out_sizes=(2, 2), out_shape=(4, 2)
    )
    tracer.close()
    (rank,) = open_run(rings).ranks
    calls = list(rank.logs["K"].span(1, 51))
    kinds = Kinds()
    packed = unpack(pack([kinds.spell(calls), kinds.table]))
    assert read_calls(*packed, "K") == calls
    assert len(kinds.table) <= len(calls)


def test_a_message_is_not_unpacked_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ncclscope.remote.spelling._MOST_BYTES", 1000)
    with pytest.raises(DamagedFileError):
        unpack(zlib.compress(b"[" + b" " * 5000 + b"]"))
    with pytest.raises(DamagedFileError):
        unpack(pack([1])[:-3])
