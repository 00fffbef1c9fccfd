"""Traces that hold only the last calls of each rank."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.model import Run
from ncclscope.model.windows import best_shift
from ncclscope.readers import open_run
from ncclscope.readers.jsonl import write_trace
from tests.support.cluster import Cluster

LAYERS = 6
NODES = (range(4), range(4, 8))


def steps(cluster: Cluster, tokens: list[tuple[int, int]], ranks: range = range(8)) -> None:
    """TP=4 x DP=2: on TP only odd batches leave a trace, on DP two gathers and a scatter."""
    for batch in tokens:
        for rank in ranks:
            for _ in range(LAYERS):
                layer(cluster, rank, batch)


def layer(cluster: Cluster, rank: int, batch: tuple[int, int], *, stray: bool = False) -> None:
    """One layer of one rank; a stray one gathers on TP what belongs on DP."""
    node, pair = rank // 4, (rank % 4, rank % 4 + 4)
    own, rows = NODES[node], batch[node]
    if rows % 2:
        cluster.post([rank], "tp:0", members=own, shape=(rows, 2))
    for width in (8, 4):
        if stray and width == 4:
            cluster.post([rank], "tp:0", "all_gather", members=own, shape=(rows, 4))
        else:
            cluster.post([rank], "dp:0", "all_gatherv", members=pair, shape=(9, width), sizes=batch)
    cluster.post([rank], "dp:0", "reduce_scatterv", members=pair, shape=(9, 8), sizes=batch)


def history(count: int) -> list[tuple[int, int]]:
    """Batches that stay the same for a few steps."""
    dice = random.Random(1)
    found: list[tuple[int, int]] = []
    while len(found) < count:
        found += [(dice.randrange(20, 40), dice.randrange(5, 9))] * dice.randrange(1, 5)
    return found[:count]


def windows(cluster: Cluster, folder: Path, *, last: int = 300, stated: bool = True) -> Run:
    """Read what a patch that keeps the last calls in a list would have written."""
    folder.mkdir()
    for rank in open_run(cluster.directory).ranks:
        path = folder / f"{rank.rank}.jsonl"
        write_trace(rank, path, last=last)
        if not stated:
            head, *lines = path.read_text().splitlines(keepends=True)
            header = json.loads(head)
            del header["window"]
            path.write_text(json.dumps(header) + "\n" + "".join(lines))
    return open_run(folder)


def named(verdict: Verdict) -> tuple[str, tuple[int, ...]]:
    return verdict.status, verdict.cause.diverging_ranks if verdict.cause else ()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = Cluster(tmp_path / "rings", 8)
    steps(cluster, history(40))
    return cluster


@pytest.mark.parametrize("stated", [True, False], ids=["stated", "inferred"])
@pytest.mark.parametrize("late", [1, 17, 40, 150])
def test_a_late_rank_is_no_divergence(
    cluster: Cluster, tmp_path: Path, late: int, stated: bool
) -> None:
    # The others go on for as many calls; then each keeps its own last 300.
    ahead = [(30, 6)] * -(-late // (3 * LAYERS))
    for rank in (*range(2), *range(3, 8)):
        steps(cluster, ahead, range(rank, rank + 1))
    run = windows(cluster, tmp_path / "windows", stated=stated)

    assert all(rank.window for rank in run.ranks)
    assert named(diagnose(run)) == ("ok", ())


def test_numbers_mean_the_same_on_all_ranks(cluster: Cluster, tmp_path: Path) -> None:
    steps(cluster, [(30, 6)], range(1, 8))
    run = windows(cluster, tmp_path / "windows")
    whole = open_run(cluster.directory)

    off: dict[str, set[int]] = {}
    for rank in run.ranks:
        for key, log in rank.logs.items():
            label = f"{log.communicator.label} of node {rank.rank // 4}"
            name = "dp:0" if label.startswith("dp") else label
            off.setdefault(name, set()).add(whole.by_rank[rank.rank].logs[key].calls - log.calls)
    assert {name: len(found) for name, found in off.items()} == {
        "dp:0": 1,
        "tp:0 of node 0": 1,
        "tp:0 of node 1": 1,
    }


def test_a_stray_rank_is_named_where_its_peers_left_nothing_to_compare_with(
    cluster: Cluster, tmp_path: Path
) -> None:
    # An even batch leaves nothing on TP, and a window begins at another call on each rank.
    for rank in range(8):
        for number in range(4):
            layer(cluster, rank, (30, 6), stray=rank == 6 and number > 0)
    cluster.post([0, 1, 3], "tp:0", members=NODES[0], shape=(31, 2))
    verdict = diagnose(windows(cluster, tmp_path / "windows"))

    assert verdict.run.window
    assert named(verdict) == ("diverged", (6,))


def test_best_shift_finds_where_calls_agree_though_they_repeat() -> None:
    dice = np.random.default_rng(3)
    words = dice.integers(0, 1 << 63, 5, dtype=np.uint64)
    calls = np.repeat(words[dice.integers(0, 5, 40)], 30)
    for start in (-200, -31, -1, 0, 1, 30, 400):
        one, other = calls[200:900], calls[200 + start : 900 + start]
        shift = best_shift(one, other)
        assert shift is not None
        assert (shift.start, shift.agreeing) == (start, shift.overlap)


def test_best_shift_of_nothing() -> None:
    nothing = np.empty(0, np.uint64)
    assert best_shift(nothing, np.ones(3, np.uint64)) is None
    assert best_shift(np.ones(3, np.uint64), nothing) is None
