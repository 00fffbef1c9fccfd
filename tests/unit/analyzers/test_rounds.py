"""Histories are divided into rounds, and a rank that left calls out of them is reported as such."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread

import pytest

from ncclscope.engine.repairs.rounds import periods
from ncclscope.model import Finding
from tests.support.cluster import Cluster

ClusterOf = Callable[[int], Cluster]
LOOP, AFTER = "train.py:8 step", "train.py:20 finish"


@pytest.mark.parametrize(
    ("history", "found"),
    [("", []), ("aa", [1]), ("abab", [2]), ("aabaab", [3]), ("bbbb", [1, 2]), ("abc", [])],
)
def test_the_end_of_a_history_is_divided_into_rounds(history: str, found: list[int]) -> None:
    assert list(periods(history)) == found


def round_of(cluster: Cluster, ranks: list[int], *, done: bool = True) -> None:
    cluster.post(ranks, "world", site=LOOP, done=done)
    cluster.post(ranks, "world", "all_gather", site="train.py:9 step", done=done)


def cause(cluster: Cluster) -> Finding:
    found = cluster.verdict().cause
    assert found is not None
    return found


def test_a_round_left_out_shows_at_the_barrier_after_the_loop(cluster_of: ClusterOf) -> None:
    """It was reported as a barrier in place of the peers' next call, and certain."""
    cluster = cluster_of(4)
    for _ in range(5):
        round_of(cluster, [0, 1, 2, 3])
    round_of(cluster, [0, 2, 3], done=False)
    cluster.post([1], "world", "barrier", shape=None, dtype=None, site=AFTER, done=False)

    found = cause(cluster)

    assert (found.kind, found.diverging_ranks) == ("missing_call", (1,))
    assert (found.seq, found.extent, found.seqs) == (11, 2, (1, 12))
    assert found.confidence == "likely"
    assert "left out one round of 2 calls" in found.summary
    assert "6 equal rounds" in found.summary
    assert found.to_dict()["seqs"] == [1, 12]


def test_the_rest_of_a_round_is_left_out_by_a_break(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for _ in range(5):
        round_of(cluster, [0, 1, 2, 3])
    cluster.post([0, 1, 2, 3], "world", site=LOOP)
    cluster.post([0, 2, 3], "world", "all_gather", site="train.py:9 step", done=False)
    cluster.post([1], "world", "barrier", shape=None, dtype=None, site=AFTER, done=False)

    found = cause(cluster)

    assert (found.kind, found.diverging_ranks) == ("missing_call", (1,))
    assert (found.seq, found.extent, found.seqs) == (12, 1, None)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_round_left_out_by_a_rank_that_came_round_to_it_again(
    cluster_of: ClusterOf, ahead: int
) -> None:
    """NCCL lets the rank run on; it was reported as the opposite order, and certain."""
    cluster = cluster_of(4)

    def backward(ranks: list[int], calls: int = 3, *, done: bool = True) -> None:
        for _ in range(calls):
            cluster.post(ranks, "world", shape=(7,), site="train.py:9 step", done=done)

    def metric(ranks: list[int], *, done: bool = True) -> None:
        cluster.post(ranks, "world", shape=(2,), site="train.py:12 step", done=done)

    for _ in range(2):
        for _ in range(3):
            backward([0, 1, 2, 3])
        metric([0, 1, 2, 3])
    for _ in range(2):
        backward([0, 1, 2, 3])
    metric([1], done=False)
    backward([1], ahead, done=False)
    backward([0, 2, 3], done=False)
    metric([0, 2, 3], done=False)

    found = cause(cluster)

    assert (found.kind, found.diverging_ranks) == ("missing_call", (1,))
    assert (found.seq, found.extent, found.seqs) == (27, 3, (21, 29))
    assert found.confidence == "likely"


def test_a_block_left_out_is_known_by_the_one_time_that_it_came_before(
    cluster_of: ClusterOf,
) -> None:
    """It was a gather in place of a barrier: two barriers of a checkpoint every fourth step."""
    cluster = cluster_of(4)

    def step(ranks: list[int], *, saves: bool = False, done: bool = True) -> None:
        cluster.post(ranks, "world", site="train.py:8 step", done=done)
        for line in (3, 5) if saves else ():
            site = f"save.py:{line} save"
            cluster.post(ranks, "world", "barrier", shape=None, dtype=None, site=site, done=done)

    def gather(ranks: list[int], *, done: bool = True) -> None:
        cluster.post(ranks, "world", "all_gather", site="train.py:12 step", done=done)

    for number in range(7):
        step([0, 1, 2, 3], saves=number == 3)
        gather([0, 1, 2, 3])
    step([0, 2, 3], saves=True, done=False)
    step([1], done=False)
    gather([1], done=False)

    found = cause(cluster)

    assert (found.kind, found.diverging_ranks) == ("missing_call", (1,))
    assert (found.seq, found.extent, found.confidence) == (18, 2, "likely")


def test_a_call_too_many_in_a_round_may_be_one_too_few(cluster_of: ClusterOf) -> None:
    """NCCL lets the rank run on; the extra call was certain."""
    cluster = cluster_of(4)
    for _ in range(6):
        round_of(cluster, [0, 1, 2, 3])
    cluster.post([1], "world", "all_gather", site="train.py:9 step", done=False)
    round_of(cluster, [0, 1, 2, 3], done=False)

    found = cause(cluster)

    assert (found.diverging_ranks, found.seq, found.confidence) == ((1,), 13, "likely")


def test_a_round_within_a_round_left_out_shows_at_the_end_of_the_outer_one(
    cluster_of: ClusterOf,
) -> None:
    """A backward that is left out shows at the metric of every third step."""
    cluster = cluster_of(4)

    def backward(ranks: list[int], *, done: bool = True) -> None:
        for size in (7, 5):
            cluster.post(ranks, "world", shape=(size,), site="train.py:9 step", done=done)

    for _ in range(2):
        for _ in range(3):
            backward([0, 1, 2, 3])
        cluster.post([0, 1, 2, 3], "world", shape=(2,), site="train.py:11 step")
    for _ in range(2):
        backward([0, 1, 2, 3])
    backward([0, 1, 3], done=False)
    cluster.post([2], "world", shape=(2,), site="train.py:11 step", done=False)

    found = cause(cluster)

    assert (found.kind, found.diverging_ranks) == ("missing_call", (2,))
    assert (found.seq, found.extent, found.seqs) == (19, 2, (15, 20))


def test_another_branch_of_the_loop_is_no_round_left_out(cluster_of: ClusterOf) -> None:
    """Near miss: the other call comes from a line between those of the loop."""
    cluster = cluster_of(4)
    for _ in range(5):
        cluster.post([0, 1, 2, 3], "world", site=LOOP)
        cluster.post([0, 1, 2, 3], "world", "all_gather", site="train.py:12 step")
    cluster.post([0, 2, 3], "world", site=LOOP, done=False)
    cluster.post([1], "world", "broadcast", root=0, site="train.py:10 step", done=False)

    assert (cause(cluster).kind, cause(cluster).confidence) == ("op_mismatch", "certain")


def test_equal_calls_before_a_skip_leave_open_which_was_skipped(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for _ in range(6):
        cluster.post([0, 1, 2, 3], "world", site=LOOP, backend="nccl")
    cluster.post([0, 2, 3], "world", site=LOOP, done=False, backend="nccl")
    for size in (5, 6, 7):
        more = {"shape": (size,), "site": AFTER, "done": False, "backend": "nccl"}
        cluster.post([0, 1, 2, 3], "world", "all_gather", **more)

    found = cause(cluster)

    assert (found.kind, found.diverging_ranks) == ("missing_call", (1,))
    assert (found.seq, found.seqs) == (7, (1, 7))
    assert "Calls 1 to 7 are 7 equal rounds" in found.summary


def library_round(cluster: Cluster, ranks: list[int], *, calls: int = 5, done: bool = True) -> None:
    """Post a forward of two calls and a backward of three, whose lines are those of a library."""
    for size in (8, 5, 5, 7, 3)[:calls]:
        cluster.post(ranks, "world", "all_gather", shape=(size,), site="torch.py:3 ag", done=done)


def test_calls_posted_again_are_cheaper_than_more_calls_left_out(cluster_of: ClusterOf) -> None:
    """A second forward was reported as the backward left out."""
    cluster = cluster_of(4)
    for _ in range(5):
        library_round(cluster, [0, 1, 2, 3])
    library_round(cluster, [0, 1, 2, 3], calls=2)
    ranks, again = [0, 1, 3], {"site": "torch.py:3 ag", "done": False}
    cluster.post(ranks, "world", "all_gather", shape=(5,), **again)
    cluster.post([2], "world", "all_gather", shape=(8,), **again)

    found = cause(cluster)

    assert (found.kind, found.diverging_ranks, found.seq) == ("extra_call", (2,), 28)
    assert found.confidence == "likely"


def test_a_call_with_a_line_of_its_own_is_not_posted_again(cluster_of: ClusterOf) -> None:
    """Near miss: only another loop would lead back to that line."""
    cluster = cluster_of(4)
    for _ in range(5):
        for line in (3, 4, 5):
            cluster.post([0, 1, 2, 3], "world", shape=(line,), site=f"train.py:{line} step")
    cluster.post([0, 1, 2, 3], "world", shape=(3,), site="train.py:3 step")
    cluster.post([0, 1, 3], "world", shape=(4,), site="train.py:4 step", done=False)
    cluster.post([2], "world", shape=(3,), site="train.py:3 step", done=False)

    found = cause(cluster)

    assert (found.kind, found.diverging_ranks) == ("missing_call", (2,))


def test_a_call_with_uneven_parts_at_the_same_line_leaves_no_round_out(
    cluster_of: ClusterOf,
) -> None:
    """Rounds with even and with uneven parts alternate: a wrong size was a round left out."""
    cluster = cluster_of(4)
    pairs = [("all_gather", "reduce_scatter"), ("all_gatherv", "reduce_scatterv")]

    def layer(ranks: list[int], kind: int, *, done: bool = True) -> None:
        sizes = {"sizes": (3, 3, 3, 4)} if kind else {}
        for op, line in zip(pairs[kind], (6, 8), strict=True):
            cluster.post(ranks, "world", op, site=f"moe.py:{line} layer", done=done, **sizes)

    for step in range(10):
        layer([0, 1, 2, 3], step % 2)
    cluster.post([0, 2, 3], "world", "all_gather", site="moe.py:6 layer", done=False)
    uneven = {"sizes": (3, 3, 3, 4), "site": "moe.py:6 layer", "done": False}
    cluster.post([1], "world", "all_gatherv", **uneven)

    found = cause(cluster)

    assert (found.kind, found.diverging_ranks) == ("split_mismatch", (1,))


@pytest.mark.parametrize(("varies", "confidence"), [(False, "certain"), (True, "likely")])
def test_a_size_at_a_line_of_many_sizes_may_be_another_round(
    cluster_of: ClusterOf, varies: bool, confidence: str
) -> None:
    cluster = cluster_of(4)
    for number in range(5):
        size = (10 + number * varies, 2)
        cluster.post([0, 1, 2, 3], "world", "all_gather", shape=size, site=LOOP)
    for ranks, rows in (([0, 1, 3], 54), ([2], 99)):
        cluster.post(ranks, "world", "all_gather", shape=(rows, 2), site=LOOP, done=False)

    found = cause(cluster)

    assert (found.kind, found.diverging_ranks) == ("size_mismatch", (2,))
    assert found.confidence == confidence


@pytest.mark.parametrize(("more", "confidence"), [(1, "likely"), (3, "certain")])
def test_a_skip_is_certain_once_more_calls_follow_than_it_left_out(
    cluster_of: ClusterOf, more: int, confidence: str
) -> None:
    """One call that is the peers' next but one may be an extra call as well."""
    cluster = cluster_of(4)
    cluster.history("world", backend="nccl")
    after = {"site": AFTER, "done": False, "backend": "nccl"}
    cluster.post([0, 1, 3], "world", shape=(7, 7), **after)
    for rows in range(more):
        cluster.post([0, 1, 2, 3], "world", shape=(rows + 1, 3), **after)

    found = cause(cluster)

    assert (found.kind, found.diverging_ranks, found.seq) == ("missing_call", (2,), 6)
    assert found.confidence == confidence


@pytest.mark.parametrize(
    ("second", "kind"), [("train.py:9 gather", "missing_call"), ("train.py:8 gather", "extra_call")]
)
def test_a_collective_of_objects_is_one_statement_of_two_calls(
    cluster_of: ClusterOf, second: str, kind: str
) -> None:
    """It was reported as an extra call of the loop, since two calls are more than one."""
    cluster = cluster_of(3)
    for _ in range(3):
        for _ in range(5):
            cluster.post([0, 1, 2], "world", site=LOOP)
        for shape, dtype, site in (((1,), "int64", "train.py:9 gather"), ((75,), "uint8", second)):
            cluster.post([0, 1, 2], "world", "all_gather", shape=shape, dtype=dtype, site=site)
    for _ in range(5):
        cluster.post([0, 1, 2], "world", site=LOOP)
    site = "train.py:9 gather"
    cluster.post([0, 2], "world", "all_gather", shape=(1,), dtype="int64", site=site, done=False)
    cluster.post([1], "world", site=LOOP, done=False)

    found = cause(cluster)

    assert (found.kind, found.diverging_ranks, found.confidence) == (kind, (1,), "likely")


def test_a_part_of_a_round_once_more_is_a_way_that_all_ranks_went(cluster_of: ClusterOf) -> None:
    """A size that is new is warmed up; a rank whose cache is smaller warms it up again."""
    cluster = cluster_of(4)

    def forward(ranks: list[int], *, done: bool = True) -> None:
        cluster.post(ranks, "world", site="serve.py:14 forward", done=done)

    def schedule(ranks: list[int]) -> None:
        cluster.post(ranks, "world", "broadcast", root=0, site="serve.py:23 main")

    everybody = [*cluster.everybody]
    for times in (4, 4, 1, 4, 1, 1, 1):
        schedule(everybody)
        for _ in range(2 * times):
            forward(everybody)
    schedule([0, 1, 2])
    forward([0, 1, 2], done=False)
    forward([3], done=False)

    found = cause(cluster)
    assert (found.kind, found.diverging_ranks) == ("extra_call", (3,))


def test_calls_of_two_threads_in_another_order_are_none_too_many(cluster_of: ClusterOf) -> None:
    """Each thread of rank 1 posts what it posts in each round, and the barrier comes first."""
    cluster = cluster_of(4)
    everybody = [*cluster.everybody]

    def save(ranks: list[int], *, done: bool = True) -> None:
        site = "save.py:16 save"
        how = {"site": site, "done": done}
        thread = Thread(target=cluster.post, args=(ranks, "world", "all_gather"), kwargs=how)
        thread.start()
        thread.join()

    def meet(ranks: list[int], *, done: bool = True) -> None:
        cluster.post(ranks, "world", "barrier", site="save.py:29 main", done=done)

    for _ in range(4):
        cluster.post(everybody, "world", site="save.py:24 main")
        save(everybody)
        meet(everybody)
    cluster.post(everybody, "world", site="save.py:24 main")
    meet([1], done=False)
    save(everybody, done=False)

    found = cause(cluster)
    assert (found.kind, found.diverging_ranks, found.extent) == ("op_mismatch", (1,), 2)
    assert found.confidence == "likely"


@pytest.mark.parametrize(("before", "confidence"), [(0, "likely"), (2, "certain")])
def test_a_size_in_the_first_round_may_be_that_of_the_next_one(
    cluster_of: ClusterOf, before: int, confidence: str
) -> None:
    """A rank that leaves out the first round posts the size of the second, if sizes grow."""
    cluster = cluster_of(4)
    for number in range(2):
        cluster.post([0, 1, 2, 3], "world", site=f"train.py:{number} setup")
    for _ in range(before):
        cluster.post([0, 1, 2, 3], "world", "all_gather", shape=(8, 2), site=LOOP)
    for ranks, rows in (([0, 1, 3], 8), ([2], 16)):
        cluster.post(ranks, "world", "all_gather", shape=(rows, 2), site=LOOP, done=False)

    found = cause(cluster)

    assert (found.kind, found.diverging_ranks) == ("size_mismatch", (2,))
    assert found.confidence == confidence


def rounds_of_two_kinds(cluster: Cluster, ranks: list[int], kinds: str, *, done: bool) -> None:
    """Post rounds, of which those of kind ``b`` begin with a broadcast."""
    how = {"done": done, "backend": "nccl"}
    for kind in kinds:
        if kind == "b":
            cluster.post(ranks, "world", "broadcast", root=0, site="train.py:7 step", **how)
        cluster.post(ranks, "world", shape=(4, 2), site=LOOP, **how)
        cluster.post(ranks, "world", "all_gather", shape=(8, 2), site="train.py:9 step", **how)


@pytest.mark.parametrize(
    ("own", "peers", "kind"), [("ba", "aa", "extra_call"), ("a", "ba", "missing_call")]
)
def test_calls_posted_before_may_be_those_of_another_round(
    cluster_of: ClusterOf, own: str, peers: str, kind: str
) -> None:
    """Every fourth round is longer. A rank that is a round off has one call more, or one fewer."""
    cluster = cluster_of(4)
    rounds_of_two_kinds(cluster, [0, 1, 2, 3], "baaaba" if own == "ba" else "baaabaaa", done=True)
    rounds_of_two_kinds(cluster, [0, 2, 3], peers, done=False)
    rounds_of_two_kinds(cluster, [1], own, done=False)

    found = cause(cluster)

    assert (found.kind, found.diverging_ranks) == (kind, (1,))
    assert found.confidence == "likely"
    assert any("another round of the loop" in line for line in found.inferred)


def test_another_edit_of_as_few_calls_leaves_a_skip_likely(cluster_of: ClusterOf) -> None:
    """Of two calls that take turns, one too many looks like one too few for as long as it goes."""
    cluster = cluster_of(4)
    how = {"done": False, "backend": "nccl"}

    def turns(ranks: list[int], which: str) -> None:
        for one in which:
            line = LOOP if one == "a" else "train.py:9 step"
            cluster.post(ranks, "world", shape=(4 if one == "a" else 8, 2), site=line, **how)

    turns([0, 1, 2, 3], "aba")
    turns([0, 1, 3], "baba")
    turns([2], "aba")

    found = cause(cluster)

    assert (found.kind, found.diverging_ranks, found.seq) == ("missing_call", (2,), 4)
    assert found.confidence == "likely"
    assert any(line.startswith("1 extra call would fit as well") for line in found.inferred)


def test_a_rank_that_ran_on_replaced_one_call(cluster_of: ClusterOf) -> None:
    """Its next calls are those of the loop: it is not certain that it posted two too many."""
    cluster = cluster_of(4)
    how = {"done": False, "backend": "nccl"}

    def turn(ranks: list[int], op: str) -> None:
        cluster.post(ranks, "world", "reduce_scatter", shape=(16, 2), site=LOOP, **how)
        cluster.post(ranks, "world", op, shape=(8, 2), site="train.py:9 step", **how)

    for _ in range(4):
        turn([0, 1, 2, 3], "all_reduce")
    cluster.post([0, 1, 2, 3], "world", "reduce_scatter", shape=(16, 2), site=LOOP, **how)
    cluster.post([0, 1, 3], "world", shape=(8, 2), site="train.py:9 step", **how)
    cluster.post([2], "world", "all_gather", shape=(8, 2), site="train.py:10 step", **how)
    for _ in range(3):
        turn([2], "all_reduce")

    found = cause(cluster)

    assert (found.seq, found.diverging_ranks) == (10, (2,))
    assert found.confidence == "likely"
    assert any("one call in place of another" in line for line in found.inferred)


def test_a_rank_that_goes_on_in_a_loop_that_its_peers_have_left_posted_more(
    cluster_of: ClusterOf,
) -> None:
    """A loader has a batch more: rank 3 begins a further round, its peers are in the barrier."""
    cluster = cluster_of(4)
    for _ in range(6):
        for tp in ((0, 1), (2, 3)):
            for _ in range(3):
                cluster.post(tp, "tp", members=tp, site="train.py:21 main")
        for dp in ((0, 2), (1, 3)):
            cluster.post(dp, "dp", members=dp, site="train.py:23 main")
        cluster.post(cluster.everybody, "world", site="train.py:25 main")
    cluster.post([0, 1, 2], "world", "barrier", site="train.py:27 main", done=False)
    cluster.post([3], "tp", members=(2, 3), site="train.py:21 main", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("extra_call", (3,))
    assert (cause.comm and cause.comm.label, cause.seq) == ("tp", 19)


def test_a_transfer_that_both_of_its_ranks_left_out_is_no_departure(cluster_of: ClusterOf) -> None:
    """Rank 1 asks rank 0 for nothing, is sent nothing, and does not say that it has received it."""
    cluster = cluster_of(3)

    def half(op: str, line: int, *, done: bool = True) -> None:
        rank, peer = (0, 1) if line < 20 else (1, 0)
        site = f"cache.py:{line} turn"
        cluster.post([rank], "world", op, peer=peer, site=site, done=done)

    def ask() -> None:
        half("send", 10)
        half("recv", 20)
        half("send", 21)
        half("recv", 11)

    def decode(ranks: Sequence[int] = (1, 2), *, done: bool = True) -> None:
        cluster.post(ranks, "decode", members=(1, 2), site="cache.py:30 decode", done=done)

    for _ in range(6):
        ask()
        half("send", 12)
        half("recv", 22)
        half("send", 23)
        half("recv", 13)
        decode()
    ask()
    half("recv", 13, done=False)
    decode()
    half("recv", 20, done=False)
    decode([2], done=False)
    verdict = cluster.verdict()

    assert (verdict.status, verdict.diverging_ranks) == ("diverged", {1})
    assert verdict.cause is not None
    assert verdict.cause.extent == 1
