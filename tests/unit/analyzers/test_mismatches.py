"""Same number, different parameters: one test that triggers each analyzer, one near miss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ncclscope.engine.verdict import Verdict
from tests.support.cluster import Cluster

ClusterOf = Callable[[int], Cluster]

MISMATCHES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("op_mismatch", "all_reduce", {}, {"op": "all_gather", "redop": None}),
    ("dtype_mismatch", "all_reduce", {"dtype": "bfloat16"}, {"dtype": "float16"}),
    ("capture_mismatch", "all_reduce", {}, {"captured": True}),
    ("redop_mismatch", "all_reduce", {"redop": "sum"}, {"redop": "max"}),
    ("root_mismatch", "broadcast", {"root": 0}, {"root": 1}),
    ("size_mismatch", "all_reduce", {"shape": (8, 2)}, {"shape": (9, 2)}),
    (
        "split_mismatch",
        "all_gatherv",
        {"sizes": [3, 1, 2, 2], "shape": (3, 2)},
        {"sizes": [3, 1, 2, 3], "shape": (3, 2)},
    ),
]

NEAR_MISSES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    # The same operation in another spelling.
    ("op_mismatch", "all_gather", {}, {"op": "AllGather"}),
    # Another dtype on all of them.
    ("dtype_mismatch", "all_reduce", {"dtype": "float16"}, {"dtype": "float16"}),
    ("capture_mismatch", "all_reduce", {"captured": True}, {"captured": True}),
    ("redop_mismatch", "all_reduce", {"redop": "max"}, {"redop": "max"}),
    ("root_mismatch", "broadcast", {"root": 1}, {"root": 1}),
    # The same number of elements in another shape.
    ("size_mismatch", "all_reduce", {"shape": (8, 2)}, {"shape": (4, 4)}),
    # Own rows differ, the list of all rows does not.
    (
        "split_mismatch",
        "all_gatherv",
        {"sizes": [3, 1, 2, 2], "shape": (3, 2)},
        {"sizes": [3, 1, 2, 2], "shape": (1, 2)},
    ),
]


def _with_one_diverging(
    cluster: Cluster, op: str, common: Any, odd: Any, diverging: int, *, quiet: float = 60.0
) -> Verdict:
    cluster.history()
    for rank in cluster.everybody:
        parameters = {**common, **odd} if rank == diverging else dict(common)
        op_of, site = parameters.pop("op", op), "train.py:41 step"
        cluster.post([rank], "tp:0", op_of, site=site, done=False, **parameters)
    return cluster.verdict(quiet=quiet)


@pytest.mark.parametrize("diverging", [0, 2])
@pytest.mark.parametrize(("kind", "op", "common", "odd"), MISMATCHES, ids=lambda value: str(value))
def test_majority_names_the_rank_that_differs(
    cluster_of: ClusterOf, kind: str, op: str, common: Any, odd: Any, diverging: int
) -> None:
    verdict = _with_one_diverging(cluster_of(4), op, common, odd, diverging)

    assert verdict.status == "diverged"
    assert verdict.cause is not None
    assert verdict.cause.kind == kind
    assert verdict.cause.diverging_ranks == (diverging,)
    assert verdict.cause.seq == 6
    assert verdict.cause.confidence == "certain"
    assert [finding.role for finding in verdict.findings] == ["cause"]


@pytest.mark.parametrize(("kind", "op", "common", "odd"), NEAR_MISSES, ids=lambda value: str(value))
def test_what_may_differ_is_no_mismatch(
    cluster_of: ClusterOf, kind: str, op: str, common: Any, odd: Any
) -> None:
    verdict = _with_one_diverging(cluster_of(4), op, common, odd, 2, quiet=0.1)

    assert verdict.status == "ok"
    assert kind not in {finding.kind for finding in verdict.findings}


def test_two_against_two_blames_nobody(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history()
    cluster.post([0, 3], "tp:0", "all_reduce", done=False)
    cluster.post([1, 2], "tp:0", "all_gather", done=False)

    verdict = cluster.verdict()

    assert verdict.cause is not None
    assert verdict.cause.kind == "op_mismatch"
    assert verdict.cause.diverging_ranks == ()
    assert verdict.cause.candidate_ranks == (0, 1, 2, 3)
    assert verdict.cause.confidence == "ambiguous"


def test_a_pair_is_decided_by_the_other_pairs(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(6)
    pairs = [(0, 3), (1, 4), (2, 5)]
    for pair in pairs:
        cluster.history("dp:0", members=pair)
        for rank in pair:
            op = "all_gather" if rank == 4 else "all_reduce"
            cluster.post([rank], "dp:0", op, members=pair, done=False)

    verdict = cluster.verdict()

    assert verdict.cause is not None
    assert verdict.cause.diverging_ranks == (4,)
    assert verdict.cause.confidence == "likely"
    assert verdict.cause.inferred  # marked as a conclusion, not a record


def test_a_pair_is_not_decided_by_pairs_at_another_place_of_the_program(
    cluster_of: ClusterOf,
) -> None:
    """The other replicas made one call more before, so that their number means another call."""
    cluster = cluster_of(6)
    pairs = [(0, 1), (2, 3), (4, 5)]
    for pair in pairs:
        cluster.history("tp:0", 3, members=pair)
    for pair in pairs[1:]:
        cluster.post(pair, "tp:0", "broadcast", members=pair, root=0)
    for pair in pairs:
        cluster.post(pair, "tp:0", members=pair)
    for pair in pairs[1:]:
        cluster.post(pair, "tp:0", members=pair)
    cluster.post([0], "tp:0", "all_gather", members=pairs[0], done=False)
    cluster.post([1], "tp:0", members=pairs[0], done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.confidence) == ("op_mismatch", "ambiguous")
    assert (cause.diverging_ranks, cause.candidate_ranks) == ((), (0, 1))


def test_a_pair_is_decided_by_a_communicator_with_a_majority(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("ep:0")
    cluster.history("tp:0", members=(2, 3))
    for rank in cluster.everybody:
        cluster.post([rank], "ep:0", "broadcast" if rank == 2 else "all_reduce", done=False)
    cluster.post([2], "tp:0", "all_gather", members=(2, 3), done=False)
    cluster.post([3], "tp:0", "all_reduce", members=(2, 3), done=False)

    verdict = cluster.verdict()

    assert {finding.diverging_ranks for finding in verdict.findings} == {(2,)}


def test_the_verdict_does_not_depend_on_the_order_of_files(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history()
    for rank in cluster.everybody:
        cluster.post([rank], "tp:0", "all_gather" if rank == 3 else "all_reduce", done=False)
    from ncclscope.engine.verdict import diagnose
    from ncclscope.readers import open_run

    files = sorted(cluster.directory.glob("*.ring"))

    there, back = diagnose(open_run(*files)), diagnose(open_run(*reversed(files)))

    assert there.to_dict()["verdict"] == back.to_dict()["verdict"]
    assert there.to_dict()["table"] == back.to_dict()["table"]


@pytest.mark.parametrize(
    ("op", "shape", "room", "fits"),
    [
        ("all_gather", (4,), (99,), False),
        ("all_gather", (4,), (16,), True),
        ("all_gather", (4, 2), (4, 4, 2), True),
        ("all_gather", (4,), (4,), True),  # a list, of which the first tensor is recorded
        ("all_gather", (4,), None, True),
        ("reduce_scatter", (16,), (5,), False),
        ("reduce_scatter", (16,), (4,), True),
        ("all_reduce", (4,), (99,), True),  # nothing is known of such an output
    ],
)
@pytest.mark.parametrize("ranks", [(2,), (0, 1, 2, 3)])
def test_an_output_that_does_not_fit_its_input(
    cluster_of: ClusterOf,
    op: str,
    shape: tuple[int, ...],
    room: tuple[int, ...] | None,
    fits: bool,
    ranks: tuple[int, ...],
) -> None:
    cluster = cluster_of(4)
    cluster.history()
    for rank in cluster.everybody:
        out = room if rank in ranks else None
        cluster.post([rank], "tp:0", op, shape=shape, out_shape=out)

    cause = cluster.verdict().cause

    if fits:
        assert cause is None
        return
    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("size_mismatch", ranks, 6)
    assert cause.confidence == "certain"


@pytest.mark.parametrize(
    ("line", "kind"), [(14, "missing_call"), (12, "op_mismatch"), (16, "missing_call")]
)
def test_a_line_of_the_program_tells_a_skipped_call_from_an_inserted_one(
    cluster_of: ClusterOf, line: int, kind: str
) -> None:
    """A library posts a barrier in each all_reduce that a program asks for, and on request.

    A request below the loop shows that the loop was left.
    """
    cluster = cluster_of(3)
    barrier = "/venv/site-packages/fabric/ddp.py:165 barrier\n/home/me/train.py:{} <module>"
    for _ in range(6):
        cluster.post(cluster.everybody, "world", "all_gather", shape=(9,))
        cluster.post(cluster.everybody, "world", "barrier", site=barrier.format(14))
        cluster.post(cluster.everybody, "world", shape=(1,))
    cluster.post([0, 2], "world", "all_gather", shape=(9,), done=False)
    cluster.post([1], "world", "barrier", site=barrier.format(line), done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == (kind, (1,))


@pytest.mark.parametrize(
    ("site", "is_behind"), [("train.py:9 step", True), ("train.py:8 step", False)]
)
def test_another_call_after_equal_ones_may_come_from_later_in_the_program(
    cluster_of: ClusterOf, site: str, is_behind: bool
) -> None:
    cluster = cluster_of(3)
    for _ in range(5):
        cluster.post(cluster.everybody, "world", site="train.py:8 step")
    cluster.post([0, 2], "world", site="train.py:8 step", done=False)
    cluster.post([1], "world", "all_gather", site=site, done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    kind = "missing_call" if is_behind else "op_mismatch"
    assert (cause.kind, cause.diverging_ranks, cause.seq) == (kind, (1,), 6)
    assert cause.confidence == ("likely" if is_behind else "certain")


@pytest.mark.parametrize(
    ("usual", "confidence"), [("all_gather", "likely"), ("barrier", "certain")]
)
def test_a_call_that_its_peers_post_next_may_have_been_posted_too_early(
    cluster_of: ClusterOf, usual: str, confidence: str
) -> None:
    """Two threads post on one communicator, on one rank in the opposite order."""
    cluster = cluster_of(3)
    for _ in range(5):
        cluster.post(cluster.everybody, "world", site="train.py:8 step")
        cluster.post(cluster.everybody, "world", usual, site="train.py:14 metrics")
    cluster.post([2], "world", "all_gather", site="train.py:14 metrics", done=False)
    cluster.post(cluster.everybody, "world", site="train.py:8 step", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("extra_call", (2,), 11)
    assert cause.confidence == confidence


@pytest.mark.parametrize(
    ("rows", "kind"), [((8, 8), "size_mismatch"), ((8, 3), "extra_call")], ids=["equal", "varying"]
)
def test_a_smaller_call_that_completes_is_no_extra_call_where_sizes_are_equal(
    cluster_of: ClusterOf, rows: tuple[int, int], kind: str
) -> None:
    """A last batch is smaller on one rank, which goes on while its peers wait in that call."""
    cluster = cluster_of(3)
    line = {"op": "all_gather", "site": "train.py:8 step"}
    for _ in range(4):
        for one in rows:
            cluster.post(cluster.everybody, "world", shape=(one, 16), **line)
    cluster.post([1], "world", shape=(5, 16), **line)
    cluster.post(cluster.everybody, "world", shape=(8, 16), done=False, **line)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.seq) == (kind, (1,), 9)


@pytest.mark.parametrize(
    ("rounds", "site", "kind", "confidence"),
    [
        (5, "train.py:16 step", "missing_call", "likely"),
        (1, "train.py:16 step", "size_mismatch", "likely"),
        (5, "train.py:7 backward", "size_mismatch", "certain"),
    ],
    ids=["usual", "no pattern", "same line"],
)
def test_a_size_from_another_line_is_of_another_call(
    cluster_of: ClusterOf, rounds: int, site: str, kind: str, confidence: str
) -> None:
    """A backward of one rank leaves an all_reduce out; the next one has another size."""
    cluster = cluster_of(3)
    for _ in range(rounds):
        cluster.post(cluster.everybody, "world", shape=(4, 16), site="train.py:7 backward")
        cluster.post(cluster.everybody, "world", shape=(), site="train.py:16 step")
    cluster.post([0, 1], "world", shape=(4, 16), site="train.py:7 backward", done=False)
    cluster.post([2], "world", shape=(), site=site, done=False)

    verdict = cluster.verdict()

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == (kind, (2,))
    assert verdict.cause.confidence == confidence
    assert ("from another line" in verdict.summary) == (rounds == 1)


def test_a_size_from_another_line_is_certain_where_later_calls_agree(cluster_of: ClusterOf) -> None:
    """Near miss: both branches post one call for the other's."""
    cluster = cluster_of(4)
    cluster.history("world", backend="nccl")
    line = {"backend": "nccl", "done": False}
    cluster.post([0, 1, 3], "world", shape=(4, 16), site="train.py:7 dense", **line)
    cluster.post([2], "world", shape=(2, 16), site="train.py:9 sparse", **line)
    for _ in range(3):
        cluster.post(cluster.everybody, "world", "barrier", shape=(), dtype=None, **line)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("size_mismatch", (2,))
    assert cause.confidence == "certain"


@pytest.mark.parametrize(
    ("places", "kind", "ranks", "confidence"),
    [
        ((1, 2), "op_mismatch", (), "ambiguous"),
        ((2, 2), "extra_call", (1,), "likely"),
        ((9, 9), "extra_call", (1,), "likely"),
    ],
    ids=["each elsewhere", "both later", "nowhere"],
)
def test_a_call_that_peers_posted_later_is_not_extra(
    cluster_of: ClusterOf,
    places: tuple[int, int],
    kind: str,
    ranks: tuple[int, ...],
    confidence: str,
) -> None:
    """A thread averages metrics on the group on which the main thread broadcasts buffers."""
    cluster = cluster_of(3)
    cluster.history("world")
    metrics = {"shape": (5,), "site": "train.py:12 metrics", "done": False}
    cluster.post([1], "world", **metrics)
    for rank, place in ((0, places[0]), (1, 1), (2, places[1])):
        for number in range(min(place, 3)):
            shape = (3 - number,)
            cluster.post([rank], "world", "broadcast", root=0, shape=shape, done=False)
        if rank != 1 and place < 3:
            cluster.post([rank], "world", **metrics)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.confidence) == (kind, ranks, confidence)
    assert cause.candidate_ranks == (() if ranks else (0, 1, 2))


@pytest.mark.parametrize(
    ("size", "past", "confidence"),
    [
        (3, {}, "likely"),
        (3, {"dtype": "float16"}, "certain"),  # the one rank posted what both posted now
        (3, {"dtype": "bfloat16"}, "likely"),  # both broke with the past, if all did
        (4, {}, "certain"),
    ],
)
def test_two_ranks_against_one_may_have_made_the_same_mistake(
    cluster_of: ClusterOf, size: int, past: dict[str, Any], confidence: str
) -> None:
    cluster = cluster_of(size)
    if past:
        for _ in range(2):
            cluster.post(cluster.everybody, "tp:0", "barrier", shape=(), dtype=None)
            cluster.post(cluster.everybody, "tp:0", **past)
        cluster.post(cluster.everybody, "tp:0", "barrier", shape=(), dtype=None)
    cluster.post([*cluster.everybody][1:], "tp:0", dtype="float16", done=False)
    cluster.post([0], "tp:0", dtype="float32", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("dtype_mismatch", (0,))
    assert cause.confidence == confidence
    assert any("same mistake" in str(line) for line in cause.inferred) == (confidence == "likely")
