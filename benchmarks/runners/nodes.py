"""What it takes to diagnose rings where they are: on the nodes, at the centre, on the way.

The nodes are another process, so that time and memory of the centre are its own. It serves them
one after the other: what a node takes is measured one by one, as they would work side by side.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from benchmarks.runners.rings import make_rings
from ncclscope.resources import economy
from ncclscope.ring.image import RECORD_DTYPE, RingImage
from ncclscope.ring.record_checks import record_checks

__all__ = ["CAPACITY", "PER_NODE", "NodeCost", "make_nodes", "measure"]

CAPACITY = 2048
PER_NODE = 8
_MODULE = "benchmarks.runners.nodes"
_NOISE_NS = 2_000_000
_FRAME = struct.Struct("<IBId")
"""Node, what is asked for, bytes, and seconds that the node took."""
_SUMMARY, _ANSWER = range(2)


@dataclass(frozen=True)
class NodeCost:
    """One diagnosis.

    Attributes:
        node: Seconds that the slowest node took to reduce its rings.
        usual: The median of all.
        centre: Seconds of the centre, nodes aside.
        memory: Most bytes that the centre had in use.
        before: Those that it had before it asked anybody.
        summaries: Bytes of the summaries that nodes sent unasked.
        total: All bytes on the way, both ways.
        rounds: How often the centre asked.
        named: The ranks that the verdict names.
    """

    node: float
    usual: float
    centre: float
    memory: int
    before: int
    summaries: int
    total: int
    rounds: int
    named: tuple[int, ...]


def make_nodes(directory: Path, ranks: int) -> None:
    """Make the rings of a job, those of each node in a directory of their own.

    All ranks have made the same calls, but none at quite the same time as another: equal times
    would pack better than real ones.
    """
    make_rings(directory, ranks, capacity=CAPACITY)
    rings = sorted(directory.glob("*.ring"), key=lambda path: path.stat().st_mtime_ns)
    random = np.random.default_rng(1)
    for number, ring in enumerate(rings):
        with RingImage(ring) as image:
            offset = image.geometry.records
        records = np.memmap(ring, RECORD_DTYPE, "r+", offset, CAPACITY)
        records["time"] += random.integers(0, _NOISE_NS, CAPACITY, np.uint64)
        low = np.uint64(0xFFFFFFFF)
        records["end"] = records["begin"] & low | record_checks(records.tobytes()) << np.uint64(32)
        del records
        place = directory / f"node-{number // PER_NODE:05}"
        place.mkdir(exist_ok=True)
        ring.rename(place / ring.name)


def measure(directory: Path, ranks: int = 0) -> NodeCost:
    """Diagnose the rings of all nodes below a directory, in a fresh process.

    Args:
        directory: From :func:`make_nodes`.
        ranks: Of a larger job, all of whose further nodes say what the last one here says.
    """
    command = [sys.executable, "-m", _MODULE, "centre", str(directory), str(ranks)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    cost = json.loads(done.stdout)
    cost["named"] = tuple(cost["named"])
    return NodeCost(**cost)


def centre(directory: str, ranks: str) -> None:
    """Ask the nodes, diagnose and print the cost."""
    from benchmarks.runners.diagnosis import most_memory
    from ncclscope.engine.verdict import diagnose
    from ncclscope.remote.fleet import Fleet
    from ncclscope.remote.run import open_remote_run

    with economy(), _nodes(directory, ranks) as client:
        before = most_memory()
        fleet = Fleet(client)
        start = time.perf_counter()
        verdict = diagnose(open_remote_run(fleet, [directory]))
        verdict.to_dict()
        seconds = time.perf_counter() - start
        cost = {
            "node": max(client.reducing),
            "usual": float(np.median(client.reducing)),
            "centre": seconds - client.waited,
            "memory": most_memory(),
            "before": before,
            "summaries": fleet.traffic.summaries,
            "total": fleet.traffic.total,
            "rounds": fleet.traffic.rounds + 1,
            "named": verdict.cause.diverging_ranks if verdict.cause else (),
        }
    json.dump(cost, sys.stdout)


class _PipeClient:
    """Nodes that are served by another process.

    Attributes:
        reducing: Seconds that each took for its summary.
        waited: Seconds in all that they were waited for.
    """

    def __init__(self, names: list[str], to: IO[bytes], back: IO[bytes]) -> None:
        self.names = names
        self.reducing: list[float] = []
        self.waited = 0.0
        self._to, self._back = to, back

    def summaries(self) -> dict[int, bytes | str]:
        found: dict[int, bytes | str] = {}
        for node in range(len(self.names)):
            found[node], seconds = self._ask(node, _SUMMARY, b"")
            self.reducing.append(seconds)
        return found

    def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        return {node: self._ask(node, _ANSWER, data)[0] for node, data in requests.items()}

    def _ask(self, node: int, what: int, data: bytes) -> tuple[bytes, float]:
        began = time.perf_counter()
        self._to.write(_FRAME.pack(node, what, len(data), 0.0) + data)
        self._to.flush()
        _, _, size, seconds = _FRAME.unpack(self._back.read(_FRAME.size))
        answer = self._back.read(size)
        self.waited += time.perf_counter() - began
        return answer, seconds


@contextmanager
def _nodes(directory: str, ranks: str) -> Iterator[_PipeClient]:
    count = int(ranks) // PER_NODE or len(list(Path(directory).iterdir()))
    names = [f"node-{number:05}" for number in range(count)]
    with subprocess.Popen(
        [sys.executable, "-m", _MODULE, "nodes", directory, ranks],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as served:
        assert served.stdin is not None
        assert served.stdout is not None
        yield _PipeClient(names, served.stdin, served.stdout)
        served.stdin.close()


def serve(directory: str, ranks: str) -> None:
    """Serve all nodes until nobody asks any more."""
    from benchmarks.runners.replicas import Replica
    from ncclscope.remote.node_server import NodeServer

    places = sorted(Path(directory).iterdir())
    node_servers: dict[int, NodeServer | Replica] = {}
    last = len(places) - 1
    shared: dict[int, NodeServer] = {}
    asked, answers = sys.stdin.buffer, sys.stdout.buffer
    with economy():
        while head := asked.read(_FRAME.size):
            node, what, size, _ = _FRAME.unpack(head)
            data = asked.read(size)
            began = time.perf_counter()
            if what == _SUMMARY:
                place = min(node, last)
                if place not in shared:
                    shared[place] = NodeServer([str(places[place])])
                node_server = shared[place]
                node_servers[node] = (
                    Replica(node_server, node, PER_NODE, int(ranks)) if int(ranks) else node_server
                )
                answer = node_servers[node].summary()
            else:
                answer = node_servers[node].answer(data)
            seconds = time.perf_counter() - began
            answers.write(_FRAME.pack(node, what, len(answer), seconds) + answer)
            answers.flush()


if __name__ == "__main__":
    {"centre": centre, "nodes": serve}[sys.argv[1]](*sys.argv[2:])
