"""Calls that a probe recorded on some ranks and NCCL's plugin on others are one sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ncclscope.engine.sequences import mixed_records
from ncclscope.engine.verdict import Verdict
from tests.support.cluster import Cluster

Edit = Callable[[list["Posted"]], list["Posted"]]


class Posted(NamedTuple):
    """One call of the program."""

    op: str
    numel: int
    redop: str | None = None
    dtype: str = "float32"
    root: int | None = None


def program(steps: int = 8) -> list[Posted]:
    """Return the calls of some steps."""
    calls = []
    for step in range(steps):
        calls += [
            Posted("all_reduce", 64, "sum"),
            Posted("all_gather", 8),
            Posted("reduce_scatter", 32, "sum", "bfloat16"),
            Posted("broadcast", 5, root=1),
            Posted("all_reduce", 10 + step, "max"),
        ]
    return calls


def post(cluster: Cluster, rank: int, calls: Iterable[Posted], *, blind: bool = False) -> None:
    """Post calls on one rank, as a probe records them or as the plugin does."""
    for call in calls:
        fields: dict[str, Any] = {"dtype": call.dtype, "root": call.root, "redop": call.redop}
        if call.op == "barrier":
            fields |= {"shape": None, "dtype": None}
        elif not blind:
            fields |= {"shape": (call.numel,)}
        if blind:
            if call.op == "barrier":
                call = Posted("all_reduce", 1)
            fields |= {"shape": None, "numel": call.numel, "redop": None, "site": None}
            dtype = "uint8" if call.dtype == "bool" else call.dtype
            fields |= {"dtype": dtype}
        cluster.post([rank], "tp:0", call.op, done=False, backend="nccl", **fields)


def judge(
    tmp_path: Path,
    blind: Sequence[int],
    edits: dict[int, Edit],
    *,
    size: int = 4,
    calls: Sequence[Posted] = (),
    capacity: int = 4096,
) -> Verdict:
    """Return the verdict on a job in which some ranks' calls are recorded by the plugin alone."""
    cluster = Cluster(tmp_path, size, capacity)
    for rank in range(size):
        own = list(calls or program())
        post(cluster, rank, edits.get(rank, list)(own), blind=rank in blind)
    return cluster.verdict(quiet=None)


BLIND = [(0,), (3,), (0, 1), (1, 2, 3), (0, 2, 3)]


@pytest.mark.parametrize("blind", BLIND)
def test_ranks_that_posted_the_same_calls_agree(tmp_path: Path, blind: Sequence[int]) -> None:
    verdict = judge(tmp_path, blind, {})
    assert (verdict.status, verdict.findings) == ("ok", ())


def without(place: int) -> Edit:
    """Return an edit that leaves out a call."""
    return lambda calls: calls[:place] + calls[place + 1 :]


def changed(place: int, **fields: Any) -> Edit:
    """Return an edit that changes a call."""
    return lambda calls: [
        *calls[:place],
        calls[place]._replace(**fields),
        *calls[place + 1 :],
    ]


@pytest.mark.parametrize("blind", BLIND)
@pytest.mark.parametrize("odd", [0, 2])
@pytest.mark.parametrize(
    ("kind", "edit"),
    [
        ("missing_call", without(20)),
        ("missing_call", without(21)),
        ("size_mismatch", changed(20, numel=65)),
        ("dtype_mismatch", changed(20, dtype="float16")),
        ("root_mismatch", changed(23, root=2)),
        ("op_mismatch", lambda calls: [*calls[:20], calls[21], calls[20], *calls[22:]]),
        ("extra_call", lambda calls: [*calls[:20], calls[23], *calls[20:]]),
    ],
)
def test_a_real_difference_is_found_and_named(
    tmp_path: Path,
    blind: Sequence[int],
    odd: int,
    kind: str,
    edit: Edit,
) -> None:
    verdict = judge(tmp_path, blind, {odd: edit})
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == (kind, (odd,))
    assert verdict.cause.confidence == "certain"


def test_an_unknown_reduction_does_not_hide_a_size(tmp_path: Path) -> None:
    # All ranks but one failed to record by a probe at the call, which had another size there.
    verdict = judge(
        tmp_path, (2,), {2: lambda calls: [Posted("all_reduce", 1)]}, calls=program()[:1]
    )
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("size_mismatch", (2,))


def test_ranks_that_recorded_their_reductions_are_compared_in_them(tmp_path: Path) -> None:
    verdict = judge(tmp_path, (0,), {2: changed(20, redop="max")}, size=5)
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("redop_mismatch", (2,))
    assert verdict.cause.seq == 21


def test_a_rank_without_reductions_has_no_say_in_which_is_right(tmp_path: Path) -> None:
    verdict = judge(tmp_path, (0,), {2: changed(20, redop="max")}, size=3)
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("redop_mismatch", ())


def test_a_rank_whose_calls_lack_reductions_only_for_a_while_agrees(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    for rank in range(3):
        calls = program()
        post(cluster, rank, calls[:10])
        post(cluster, rank, calls[10:20], blind=rank == 1)
        post(cluster, rank, calls[20:])
    assert cluster.verdict(quiet=None).status == "ok"


def test_a_barrier_is_nccl_s_all_reduce_of_one_element(tmp_path: Path) -> None:
    calls = [*program(2), Posted("barrier", 0), Posted("all_reduce", 1, "sum"), *program(2)]
    assert judge(tmp_path / "same", (1,), {}, calls=calls).status == "ok"
    verdict = judge(tmp_path / "skipped", (1,), {1: without(10)}, calls=calls[:11] + calls[12:])
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("missing_call", (1,))


def test_nccl_has_bytes_for_booleans(tmp_path: Path) -> None:
    calls = [*program(1), Posted("all_gather", 3, dtype="bool"), *program(1)]
    assert judge(tmp_path, (1,), {}, calls=calls).status == "ok"


@pytest.mark.parametrize("op", ["all_gatherv", "all_to_all"])
def test_calls_that_are_several_of_nccl_s_blame_nobody(tmp_path: Path, op: str) -> None:
    cluster = Cluster(tmp_path, 3)
    for rank in range(3):
        post(cluster, rank, program(2), blind=rank == 1)
        if rank == 1:
            roots = range(3 if op == "all_gatherv" else 0)
            post(cluster, 1, [Posted("broadcast", 2, root=root) for root in roots], blind=True)
        else:
            cluster.post(
                [rank], "tp:0", op, shape=(2, 1), sizes=(2, 2, 2), done=False, backend="nccl"
            )
        post(cluster, rank, program(2), blind=rank == 1)
    verdict = cluster.verdict(quiet=None)
    assert (verdict.status, verdict.findings) == ("unknown", ())
    assert "are not compared" in verdict.coverage.unseen[0]
    assert verdict.exit_status == 3


@pytest.mark.parametrize("blind", [(0,), (1, 2)])
def test_overwritten_beginnings_agree_and_differ_as_others(
    tmp_path: Path, blind: Sequence[int]
) -> None:
    calls = program(1000)
    # They are at different calls by now.
    edits: dict[int, Edit] = {1: lambda own: own[:-1], 2: lambda own: own[:-2]}
    assert judge(tmp_path / "same", blind, edits, size=3, calls=calls, capacity=1024).status == "ok"
    edits[2] = without(4600)
    verdict = judge(tmp_path / "skip", blind, edits, size=3, calls=calls, capacity=1024)
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("missing_call", (2,))


def test_more_calls_than_can_be_signed_again_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixed_records, "_MOST_CALLS", 100)
    verdict = judge(tmp_path, (1,), {})
    assert (verdict.status, verdict.findings) == ("unknown", ())
