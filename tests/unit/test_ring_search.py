"""Finding a call in a ring without reading all of it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ncclscope.model.log import newest_of
from ncclscope.model.signature import sign
from ncclscope.readers import open_run
from ncclscope.ring.reader import CHUNK
from ncclscope.tracing.tracer import Tracer

CAPACITY = 16 * CHUNK
# Calls of each communicator in a thousand, and in the last stretch. One falls silent early.
SHARES = {"often": (900, 1000), "now and then": (97, 0), "rare": (3, 0)}


@pytest.fixture(scope="module", params=[CAPACITY // 2, CAPACITY, 3 * CAPACITY + 77])
def ring(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tracer = Tracer(tmp_path_factory.mktemp("ring"), rank=0, capacity=CAPACITY, heartbeat=False)
    comms = {name: tracer.communicator(name, name, [0, 1]) for name in SHARES}
    dice = random.Random(7)
    made = dict.fromkeys(comms, 0)
    for number in range(request.param):
        last = number > request.param - 3 * CHUNK
        name = dice.choices(list(SHARES), [share[last] for share in SHARES.values()])[0]
        made[name] += 1
        shape = (made[name] % 97, 2)
        tracer.record(comms[name], "all_reduce", shape=shape, dtype="int8", site="a.py:1 f")
    tracer.close()
    return Path(tracer.path)


def test_every_call_that_is_kept_is_found(ring: Path) -> None:
    (rank,) = open_run(ring).ranks
    for log in rank.logs.values():
        seqs = list(range(log.first, log.calls + 1))
        assert len(seqs) > 8
        random.Random(3).shuffle(seqs)
        for seq in seqs[:400]:
            call = log.call(seq)
            assert (call.seq, call.shape) == (seq, (seq % 97, 2))
    kept = sum(log.calls + 1 - log.first for log in rank.logs.values())
    assert kept == rank.records


def test_a_stretch_is_found_whole(ring: Path) -> None:
    (rank,) = open_run(ring).ranks
    for log in rank.logs.values():
        expected = [
            sign("all_reduce", dtype="int8", shape=(seq % 97, 2))
            for seq in range(log.first, log.calls + 1)
        ]
        assert log.signatures(log.first, log.calls + 1) == expected
        assert log.signatures(log.calls, log.calls + 1) == expected[-1:]


def test_the_last_transfers_are_found_without_reading_all(tmp_path: Path) -> None:
    tracer = Tracer(tmp_path, rank=0, world_size=2, capacity=32768, heartbeat=False)
    comm = tracer.communicator("k", "pp:0", [0, 1], "gloo")
    for number in range(20_000):
        tracer.record(
            comm, "send" if number % 7 == 0 else "all_reduce", shape=(number + 1,), peer=1
        )
    tracer.close()
    (rank,) = open_run(tmp_path).ranks
    (again,) = open_run(tmp_path).ranks
    whole = list(again.p2p["k"])

    newest = newest_of(rank.p2p["k"], 5)

    assert list(newest) == whole[-5:]
    assert [call.numel for call in newest] == [number + 1 for number in range(19971, 20000, 7)]
    assert list(newest_of(rank.p2p["k"], 10**6)) == whole
    assert list(newest_of(again.p2p["k"], 5)) == whole[-5:]
    assert list(newest_of(whole, 5)) == whole[-5:]
    assert list(newest_of(whole[:2], 5)) == whole[:2]
