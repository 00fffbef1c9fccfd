"""Connections in which ranks wait for each other: a chain goes on to their other end."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace

from ncclscope import Verdict, diagnose
from ncclscope.attach.host.sockets import other_ends
from ncclscope.model.snapshot import ProcessSample, Worker
from ncclscope.readers.bundle import with_snapshot
from tests.support.cluster import Cluster
from tests.support.snapshots import in_collective, judged, snapshot, stack, worker

ClusterOf = Callable[[int], Cluster]
READS = stack("train.py:1 <module>", "train.py:30 read")
ASKS = stack("train.py:1 <module>", "train.py:40 ask")


def test_the_kernel_shows_who_is_at_the_other_end() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if not child:
        client = socket.create_connection(server.getsockname())
        client.recv(1)
        os._exit(0)
    connection, _ = server.accept()
    deadline = time.monotonic() + 60.0
    try:
        while not (found := other_ends({os.getpid(): 0, child: 1})):
            assert time.monotonic() < deadline
            os.sched_yield()
        alone = other_ends({child: 1})
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        connection.close()
        server.close()

    assert found == {child: 0}
    assert alone == {}


def at_socket(rank: int, other_end: int = -1) -> Worker:
    blocked = tuple(ProcessSample("S", 10.0, 10.0, 100, blocked="socket") for _ in range(2))
    return replace(worker(rank, READS, other_end=other_end), samples=blocked)


def _stacks(other_end: int) -> list[Worker]:
    """Rank 0 waits for rank 1, which waits at a socket; rank 3 waits for rank 2."""
    learner, actor = in_collective("all_reduce", 7), in_collective("all_reduce", 9)
    return [worker(0, learner), at_socket(1, other_end), worker(2, ASKS), worker(3, actor)]


def _recorded(cluster: Cluster, other_end: int) -> Verdict:
    for _ in range(4):
        cluster.post([0, 1], "learners", members=[0, 1])
        cluster.post([2, 3], "actors", members=[2, 3])
    cluster.post([0], "learners", members=[0, 1], done=False)
    cluster.post([3], "actors", members=[2, 3], done=False)
    return diagnose(with_snapshot(cluster.run(), snapshot(_stacks(other_end), 12.0)))


def test_a_rank_at_a_socket_waits_for_its_other_end(cluster_of: ClusterOf) -> None:
    assert _recorded(cluster_of(4), 3).diverging_ranks == {2}


def test_a_rank_at_a_socket_of_another_process_may_be_the_cause(cluster_of: ClusterOf) -> None:
    assert _recorded(cluster_of(4), -1).diverging_ranks == {1, 2}


ACCEPTED = (((0, 1, 2, 3), (3,)), ((0,), (0, 2, 3)), ((0, 3),), ((2,),))
"""Of gloo's connections with the groups of all, of ranks 0 1 and of ranks 2 3."""


def test_without_records_who_waits_for_a_rank_in_a_call_is_no_cause() -> None:
    def ranks(other_end: int) -> frozenset[int]:
        seen = zip(_stacks(other_end), ACCEPTED, strict=True)
        return judged(
            *(replace(one, accepted=peers, world_size=4) for one, peers in seen), gap=12.0
        ).diverging_ranks

    assert ranks(-1) == {1, 2}
    assert ranks(3) == {2}
