"""Calls left out or put in among equal ones, which only their surroundings distinguish."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclscope.engine.verdict import Verdict
from ncclscope.tracing import scope
from tests.support.cluster import Cluster
from tests.support.examples import examples

ClusterOf = Callable[[int], Cluster]
Program = list[tuple[str, str]]  # communicator and call site


def _post(cluster: Cluster, rank: int, label: str, site: str) -> None:
    cluster.post([rank], label, site=site, done=False, backend="nccl")


def _named(verdict: Verdict) -> tuple[str, tuple[int, ...], int | None, str]:
    cause = verdict.cause
    assert cause is not None
    return cause.kind, cause.diverging_ranks, cause.seq, cause.confidence


def test_a_skip_is_found_by_the_lines_that_calls_come_from(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for rank in cluster.everybody:
        for number in range(17):
            if (rank, number) != (2, 5):
                _post(cluster, rank, "tp:0", f"model.py:{number} forward")

    verdict = cluster.verdict()

    assert _named(verdict) == ("missing_call", (2,), 6, "likely")
    assert verdict.cause is not None
    assert verdict.cause.inferred, "that a call is missing is a conclusion"
    assert verdict.cause.aligned[3][1] is None, "the missing call is shown as a gap"


def test_an_extra_call_is_found_by_them(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for rank in cluster.everybody:
        for number in range(17):
            if (rank, number) == (2, 5):
                _post(cluster, rank, "tp:0", "model.py:99 retry")
            _post(cluster, rank, "tp:0", f"model.py:{number} forward")

    assert _named(cluster.verdict()) == ("extra_call", (2,), 6, "likely")


@pytest.mark.parametrize(
    ("shape", "site"), [((), "train.py:8 step"), ((1,), "train.py:8 step"), ((), "train.py:9 step")]
)
def test_an_extra_call_that_equals_the_next_one_is_found_where_it_is(
    cluster_of: ClusterOf, shape: tuple[int, ...], site: str
) -> None:
    """It pairs with its peers' next call, and shows only where the one after that is due."""
    cluster = cluster_of(3)
    for _ in range(8):
        cluster.post(cluster.everybody, "world", shape=(1,), site="train.py:9 step")
        cluster.post(cluster.everybody, "world", "all_gather", site="train.py:10 step")
    cluster.post([2], "world", shape=shape, site=site, done=False)
    cluster.post(cluster.everybody, "world", shape=(1,), site="train.py:9 step", done=False)
    cluster.post([0, 1], "world", "all_gather", site="train.py:10 step", done=False)

    assert _named(cluster.verdict()) == ("extra_call", (2,), 17, "certain")


@pytest.mark.parametrize("rounds", [10, 30])
def test_one_rank_in_another_branch_is_no_shift(cluster_of: ClusterOf, rounds: int) -> None:
    """Its two calls equal its peers' but for the lines. With a period of three they match shifted.

    One of the others is a step behind, as where the job runs or was killed.
    """
    cluster = cluster_of(4)
    for rank in cluster.everybody:
        for number in range(rounds - (rank == 0)):
            branch = "evaluate" if (rank, number) == (1, 5) else "step"
            for line in (20, 21):
                _post(cluster, rank, "world", f"train.py:{line} {branch}")
            _post(cluster, rank, "world", "train.py:27 step")

    verdict = cluster.verdict()

    assert verdict.cause is None or verdict.cause.kind == "not_joined"


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_that_take_turns_in_a_branch_are_not_shifted(
    cluster_of: ClusterOf, size: int
) -> None:
    cluster = cluster_of(size)
    for rank in cluster.everybody:
        for number in range(27 - (rank == size - 1)):
            line = "train.py:9 own" if number % size == rank else "train.py:12 other"
            _post(cluster, rank, "world", line)

    cause = cluster.verdict().cause

    assert cause is None or (cause.kind, cause.seq) == ("not_joined", 27)


def test_a_rank_that_comes_early_from_another_branch_left_out_calls(cluster_of: ClusterOf) -> None:
    """It left the loop for a barrier when its peers began a round; the branch explains nothing."""
    cluster = cluster_of(3)
    for rank in cluster.everybody:
        for number in range(20):
            branch = "unsynced" if (rank, number) == (1, 5) else "step"
            for line in (20, 21):
                _post(cluster, rank, "world", f"train.py:{line} {branch}")
            _post(cluster, rank, "world", "train.py:27 step")
    cluster.post([1], "world", "barrier", shape=None, dtype=None, done=False, backend="nccl")
    cluster.post([0, 2], "world", site="train.py:20 step", done=False, backend="nccl")

    verdict = cluster.verdict()
    assert _named(verdict) == ("missing_call", (1,), 61, "likely")
    assert verdict.cause is not None
    assert (verdict.cause.extent, verdict.cause.seqs) == (3, (1, 63))
    assert "Calls 1 to 61 are 21 equal rounds, the last of which" in verdict.cause.summary


def test_the_end_alone_says_that_a_rank_never_joined(cluster_of: ClusterOf) -> None:
    """Near miss: the lines agree call by call, and the rank is short of the last one."""
    cluster = cluster_of(4)
    for number in range(17):
        cluster.post(cluster.everybody, "tp:0", site=f"model.py:{number} forward")
    cluster.post([0, 1, 3], "tp:0", site="model.py:17 forward", done=False)

    assert _named(cluster.verdict()) == ("not_joined", (2,), 18, "certain")
    assert cluster.verdict(quiet=0.1).status == "ok"


def test_ranks_with_lines_of_their_own_have_skipped_nothing(cluster_of: ClusterOf) -> None:
    """Near miss: the root comes from another line than the others, and one is behind."""
    cluster = cluster_of(4)
    for number in range(7):
        late = number == 6
        cluster.post([0], "tp:0", "broadcast", root=0, site="model.py:1 send", done=not late)
        cluster.post(
            [1, 3] if late else [1, 2, 3],
            "tp:0",
            "broadcast",
            root=0,
            site="model.py:2 receive",
            done=not late,
        )

    assert _named(cluster.verdict()) == ("not_joined", (2,), 7, "certain")


def test_a_skip_is_found_by_the_rhythm_of_other_communicators(cluster_of: ClusterOf) -> None:
    """All come from one line; three calls come between two of the world's, and once two."""
    cluster = cluster_of(4)
    for rank in cluster.everybody:
        for step in range(8):
            for call in range(3):
                if (rank, step, call) != (1, 4, 1):
                    _post(cluster, rank, "tp:0", "model.py:10 layer")
            _post(cluster, rank, "world", "model.py:20 step")

    assert _named(cluster.verdict()) == ("missing_call", (1,), 15, "likely")


def test_a_skip_is_found_by_the_steps_of_the_engine(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for rank in cluster.everybody:
        for step in range(8):
            cluster.tracers[rank].step(step, tokens=4)
            for call in range(3):
                if (rank, step, call) != (1, 4, 1):
                    _post(cluster, rank, "tp:0", "model.py:10 layer")

    assert _named(cluster.verdict()) == ("missing_call", (1,), 15, "likely")


def test_no_rank_is_named_for_calls_that_cannot_be_distinguished(cluster_of: ClusterOf) -> None:
    """Near miss: one call short in a row of equal ones from one line."""
    cluster = cluster_of(4)
    for rank in cluster.everybody:
        for number in range(17):
            if (rank, number) != (1, 5):
                _post(cluster, rank, "tp:0", "model.py:10 layer")

    assert _named(cluster.verdict()) == ("not_joined", (1,), 17, "certain")


def test_a_skip_is_traced_back_from_where_it_was_noticed(cluster_of: ClusterOf) -> None:
    """Six equal calls and another one: the numbers diverge at the latter, the lines before."""
    cluster = cluster_of(4)
    for rank in cluster.everybody:
        for step in range(5):
            for call in range(6):
                if (rank, step, call) != (3, 3, 2):
                    _post(cluster, rank, "tp:0", f"model.py:{call} layer")
            cluster.post([rank], "tp:0", "all_gather", done=False, backend="nccl")

    verdict = cluster.verdict()

    assert _named(verdict) == ("missing_call", (3,), 24, "certain")
    assert verdict.cause is not None
    assert any("#27" in fact for fact in verdict.cause.evidence), "where it was noticed"


def test_the_rank_of_a_pair_that_breaks_their_rhythm_is_named(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(2)
    for rank in cluster.everybody:
        for step in range(6):
            for call in range(3):
                if (rank, step, call) != (1, 4, 1):
                    _post(cluster, rank, "tp:0", f"model.py:{call} layer")

    verdict = cluster.verdict()

    assert _named(verdict) == ("missing_call", (1,), 14, "likely")
    # While both go on, one may have an order of its own among communicators.
    assert cluster.verdict(quiet=0.3).cause is None


def test_a_pair_without_a_rhythm_has_no_diverging_rank(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(2)
    for rank in cluster.everybody:
        for number in range(17):
            if (rank, number) != (1, 5):
                _post(cluster, rank, "tp:0", f"model.py:{number} forward")

    verdict = cluster.verdict()

    assert _named(verdict) == ("missing_call", (), 6, "ambiguous")
    assert verdict.cause is not None
    assert verdict.cause.candidate_ranks == (0, 1)


@pytest.mark.parametrize("calls", [2, 0])
@pytest.mark.parametrize("odd", [0, 1])
def test_another_number_of_calls_in_a_step_of_a_pair_is_a_note(
    cluster_of: ClusterOf, odd: int, calls: int
) -> None:
    """A dummy forward more in one step, as where an engine's step is empty."""
    cluster = cluster_of(2)
    for rank in cluster.everybody:
        for step in range(1, 9):
            cluster.tracers[rank].step(step, tokens=1)
            for _ in range(calls if (rank, step) == (odd, 6) else 1):
                _post(cluster, rank, "dp:0", "dp_utils.py:75 _run_ar")

    verdict = cluster.verdict()

    seq = 7 if calls else 6
    assert _named(verdict) == ("missing_call", (), seq, "ambiguous")
    assert verdict.cause is not None
    assert verdict.cause.candidate_ranks == (0, 1)
    notes = " ".join(verdict.cause.inferred)
    assert f"rank {odd} posted another number of calls in one step" in notes


def _forwards(cluster: Cluster, extra: dict[int, set[int]], waits: int) -> None:
    """One call a step on two ranks, one more in some; rank ``waits`` is one call further on."""
    for rank in cluster.everybody:
        left = 16 + (rank == waits)
        for step in range(1, 17):
            cluster.tracers[rank].step(step, tokens=1)
            for _ in range(min(left, 2 if step in extra.get(rank, ()) else 1)):
                left -= 1
                done = (rank, left) != (waits, 0)
                cluster.post([rank], "dp:0", site="dp_utils.py:75 _run_ar", done=done)


@pytest.mark.parametrize("odd", [0, 1])
def test_the_first_of_several_calls_put_in_is_named(cluster_of: ClusterOf, odd: int) -> None:
    """The calls pair up: the diverging rank is further on, and not where its peer is late."""
    cluster = cluster_of(2)
    _forwards(cluster, {odd: {4, 8, 12}}, waits=odd)

    verdict = cluster.verdict()

    assert _named(verdict) == ("missing_call", (), 5, "ambiguous")
    assert verdict.cause is not None
    assert "3 calls apart" in verdict.cause.summary
    assert f"rank {odd} posted another number of calls" in " ".join(verdict.cause.inferred)


def test_a_call_that_both_put_in_at_their_time_is_no_difference(cluster_of: ClusterOf) -> None:
    """Near miss: each made it in a step of its own, and the other merely has not arrived."""
    cluster = cluster_of(2)
    _forwards(cluster, {0: {4}, 1: {8}}, waits=0)

    assert _named(cluster.verdict()) == ("not_joined", (), 17, "ambiguous")


@pytest.mark.parametrize("usual", [(1, 2, 1, 1, 1), (1, 1)])
def test_steps_without_a_rhythm_decide_no_pair(
    cluster_of: ClusterOf, usual: tuple[int, ...]
) -> None:
    """Near misses: the number of calls changes from step to step; too few steps."""
    cluster = cluster_of(2)
    for rank in cluster.everybody:
        for step, calls in enumerate((*usual, 2 if rank else 1, 1, 1), 1):
            cluster.tracers[rank].step(step, tokens=1)
            for _ in range(calls):
                _post(cluster, rank, "dp:0", "dp_utils.py:75 _run_ar")

    kind, diverging, _, confidence = _named(cluster.verdict())

    assert (kind, diverging, confidence) == ("missing_call", (), "ambiguous")


def test_in_a_pair_the_rank_that_diverges_elsewhere_is_named(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    for rank in cluster.everybody:
        tp = (0, 1) if rank < 2 else (2, 3)
        for number in range(17):
            skipped = rank == 3 and number == 5
            if not skipped:
                cluster.post(
                    [rank],
                    "tp:0",
                    members=tp,
                    site=f"model.py:{number} forward",
                    done=False,
                    backend="nccl",
                )
                _post(cluster, rank, "ep:0", f"model.py:{100 + number} experts")

    verdict = cluster.verdict()

    causes = {
        (finding.comm.label, finding.diverging_ranks)
        for finding in verdict.findings
        if finding.role == "cause" and finding.comm is not None
    }
    assert causes == {("ep:0", (3,)), ("tp:0", (3,))}


def test_a_skip_before_what_is_kept_is_reported_as_older(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 4, capacity=1024)
    for rank in cluster.everybody:
        for number in range(3000):
            if (rank, number) != (2, 5):
                _post(cluster, rank, "tp:0", f"model.py:{number % 50} forward")

    verdict = cluster.verdict()

    assert _named(verdict)[:2] == ("missing_call", (2,))
    assert _named(verdict)[3] == "likely"
    assert verdict.cause is not None
    assert any("or before" in fact for fact in verdict.cause.evidence)


@pytest.fixture(scope="module")
def fresh() -> Iterator[Callable[[int], Cluster]]:
    with TemporaryDirectory() as directory:
        made = iter(range(1 << 30))
        yield lambda size: Cluster(Path(directory) / str(next(made)), size, capacity=1024)


PROGRAMS = st.lists(
    st.tuples(st.sampled_from(["tp:0", "world"]), st.sampled_from("abc")), min_size=8, max_size=40
)


@settings(max_examples=examples(60), deadline=None)
@given(program=PROGRAMS, lags=st.lists(st.integers(0, 6), min_size=4, max_size=4))
def test_ranks_of_one_program_differ_nowhere_however_far_they_are(
    fresh: ClusterOf, program: Program, lags: list[int]
) -> None:
    cluster = fresh(4)
    for rank, lag in enumerate(lags):
        for label, site in program[: len(program) - lag]:
            _post(cluster, rank, label, f"model.py:{ord(site)} {site}")

    assert cluster.verdict(quiet=0.1).status == "ok"


@settings(max_examples=examples(60), deadline=None)
@given(program=PROGRAMS, place=st.integers(0, 39), odd=st.integers(0, 3))
def test_whoever_skips_a_call_is_the_only_one_blamed(
    fresh: ClusterOf, program: Program, place: int, odd: int
) -> None:
    """Whatever a verdict makes of it, it names no other rank, and no call before the skip."""
    cluster = fresh(4)
    place %= len(program)
    label = program[place][0]
    seq = sum(1 for each, _ in program[: place + 1] if each == label)
    for rank in cluster.everybody:
        for number, (each, site) in enumerate(program):
            if (rank, number) != (odd, place):
                _post(cluster, rank, each, f"model.py:{ord(site)} {site}")

    for finding in cluster.verdict().findings:
        if finding.role == "cause":
            assert finding.diverging_ranks in ((), (odd,))  # none where a pattern speaks for it
            assert odd in (finding.diverging_ranks or finding.candidate_ranks)
            if finding.kind == "missing_call" and finding.diverging_ranks:
                assert finding.comm is not None
                assert finding.seq is not None
                assert (finding.comm.label, finding.extent) == (label, 1)
                assert finding.seq >= seq


def test_a_group_in_another_order_is_not_where_ranks_diverged(cluster_of: ClusterOf) -> None:
    """Near miss: calls 2 and 3 are swapped inside of a group, call 7 is a size of its own.

    With the group's first call put in, the others' would follow shifted by one.
    """
    cluster = cluster_of(4)
    cluster.post(cluster.everybody, "tp:0")
    for rank in cluster.everybody:
        scope.enter_group()
        for rows in (4, 3) if rank == 2 else (3, 4):
            cluster.post([rank], "tp:0", shape=(rows, 2))
        scope.leave_group()
    for _ in range(3):
        cluster.post(cluster.everybody, "tp:0")
    last = {"site": "train.py:41 step", "done": False}
    cluster.post([0, 1, 3], "tp:0", shape=(54, 2), **last)
    cluster.post([2], "tp:0", shape=(99, 2), **last)

    assert _named(cluster.verdict()) == ("size_mismatch", (2,), 7, "certain")


def _branches(cluster: Cluster, *, other: bool) -> None:
    """All post equal calls, rank 2 at last from another branch; then it gathers."""
    for number in range(6):
        cluster.post(cluster.everybody, "tp:0", site=f"model.py:{number % 3} forward", done=False)
    for number in range(10):
        cluster.post([0, 1, 3], "tp:0", site=f"train.py:{10 + number % 2} step", done=False)
        line = 80 if other else 10
        cluster.post([2], "tp:0", site=f"train.py:{line + number % 2} step", done=False)
    cluster.post([0, 1, 3], "tp:0", shape=(7, 2), site="train.py:30 end", done=False)
    cluster.post([2], "tp:0", "all_gather", site="train.py:95 end", done=False)


def test_the_first_call_from_another_line_is_where_a_rank_left(cluster_of: ClusterOf) -> None:
    """Ten calls of another branch equal those of the peers; the eleventh does not."""
    cluster = cluster_of(4)
    _branches(cluster, other=True)

    verdict = cluster.verdict()

    assert _named(verdict) == ("op_mismatch", (2,), 7, "likely")
    assert verdict.cause is not None
    assert verdict.cause.odd is not None
    assert verdict.cause.odd.site == "train.py:80 step"
    assert "call 17 is all_gather" in verdict.cause.summary


def test_equal_lines_leave_the_difference_where_it_is(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    _branches(cluster, other=False)

    assert _named(cluster.verdict()) == ("op_mismatch", (2,), 17, "likely")


def test_lines_that_a_rank_has_always_had_are_no_branch(cluster_of: ClusterOf) -> None:
    """Near miss: the root sends from a line of its own, from the first call on."""
    cluster = cluster_of(4)
    for number in range(8):
        for rank in cluster.everybody:
            line = "data.py:12 send" if rank == 2 else "data.py:15 receive"
            cluster.post([rank], "tp:0", site=line, done=False)
        site = f"train.py:{number % 2} step"
        cluster.post(cluster.everybody, "tp:0", "all_gather", site=site, done=False)
    cluster.post([0, 1, 3], "tp:0", site="data.py:15 receive", done=False)
    cluster.post([2], "tp:0", "broadcast", root=0, site="data.py:12 send", done=False)

    assert _named(cluster.verdict()) == ("op_mismatch", (2,), 17, "certain")


@pytest.mark.parametrize("diverging", [0, 1])
def test_a_rank_with_a_batch_fewer_in_each_epoch_posted_no_extra_calls(
    cluster_of: ClusterOf, diverging: int
) -> None:
    """The last two calls also fit with a shift by nine, as calls of a loop are alike."""
    cluster = cluster_of(4)
    for rank in cluster.everybody:
        batches = 9 if rank == diverging else 10
        epoch = [*["train.py:10 batch"] * batches, "train.py:14 epoch"]
        made = [*epoch, *epoch][:21]
        for number, site in enumerate(made, 1):
            cluster.post([rank], "world", site=site, done=number < 21)

    verdict = cluster.verdict()

    assert verdict.status == "hung"
    assert [(one.kind, one.diverging_ranks) for one in verdict.findings] == [
        ("not_joined", (diverging,))
    ]


@pytest.mark.parametrize("size", [2, 3])
def test_two_calls_in_the_opposite_order_are_no_certain_skip(
    cluster_of: ClusterOf, size: int
) -> None:
    """Each rank waits in its first call, so the records show no second one."""
    cluster = cluster_of(size)
    for _ in range(4):
        cluster.post(range(size), "world", site="train.py:1 reduce")
        cluster.post(range(size), "world", "all_gather", site="train.py:2 gather")
    others = [rank for rank in range(size) if rank != 1]
    cluster.post(others, "world", site="train.py:1 reduce", done=False)
    cluster.post([1], "world", "all_gather", site="train.py:2 gather", done=False)

    verdict = cluster.verdict()

    assert verdict.cause is not None
    assert (verdict.cause.diverging_ranks, verdict.cause.confidence) == ((1,), "likely")
    assert "in the opposite order" in verdict.summary
    assert "went on" not in verdict.summary
    assert "train.py:1 reduce" in verdict.summary
    assert "train.py:2 gather" in verdict.summary


def test_a_deadlock_cycle_names_the_lines(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(2)
    for label in ("world", "other"):
        cluster.post(range(2), label)
    cluster.post([0], "world", site="train.py:1 reduce", done=False)
    cluster.post([1], "other", site="train.py:2 reduce", done=False)

    cause = cluster.verdict().cause

    assert cause is not None
    assert "would have posted it later" in cause.summary
    for rank, line in enumerate(("train.py:1", "train.py:2")):
        assert any(f"rank {rank} is in" in fact and line in fact for fact in cause.evidence)


def _grid(cluster: Cluster, skips: dict[tuple[int, int], int]) -> None:
    """Eight steps of three calls in a row's pair and one in a column's; some leave calls out."""
    rows, columns = ((0, 1), (2, 3)), ((0, 2), (1, 3))
    for step in range(8):
        for number, members in enumerate(rows):
            for rank in members:
                for _ in range(3 - skips.get((rank, step), 0)):
                    cluster.post([rank], f"tp:{number}", members=members, site="model.py:9 layer")
        for number, members in enumerate(columns):
            cluster.post(members, f"dp:{number}", members=members, site="train.py:4 step")


def test_of_a_pair_the_rank_that_differs_from_the_other_replica_left_a_call_out(
    cluster_of: ClusterOf,
) -> None:
    """Which of the three equal calls of the step it is, no record shows."""
    cluster = cluster_of(4)
    _grid(cluster, {(3, 3): 1})

    verdict = cluster.verdict()

    assert _named(verdict) == ("missing_call", (3,), 12, "likely")
    assert verdict.cause is not None
    assert verdict.cause.seqs == (10, 12)


def test_of_a_pair_neither_is_named_where_the_other_replica_differs_as_well(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(4)
    _grid(cluster, {(3, 3): 1, (1, 5): 1})

    verdict = cluster.verdict()

    assert verdict.cause is not None
    assert verdict.cause.confidence == "ambiguous"


def test_lines_show_a_forward_too_many_that_fewer_edits_explain(cluster_of: ClusterOf) -> None:
    """Its first calls equal those of the step to come; one call more is prefetched after it."""
    cluster = cluster_of(4)
    forward, sample = "train.py:26 main", "train.py:13 sample"

    def post(ranks: list[int], op: str, size: int, site: str) -> None:
        cluster.post(ranks, "world", op, shape=(size,), site=site, done=False, backend="nccl")

    def step(ranks: list[int], *, more: bool = False) -> None:
        for size in (96, 32):
            post(ranks, "all_gather", size, forward)
        for size in (32, 96):
            post(ranks, "all_gather", size, "train.py:27 main")
        post(ranks, "reduce_scatter", 128, "train.py:27 main")
        if more:
            post(ranks, "all_gather", 32, "train.py:27 main")
        post(ranks, "reduce_scatter", 160, "train.py:27 main")

    for _ in range(6):
        step([0, 1, 2, 3])
    for size in (96, 32):
        post([1], "all_gather", size, sample)
    step([0, 2, 3])
    step([1], more=True)
    step([0, 1, 2, 3])

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.extent) == ("extra_call", (1,), 2)
    assert cause.odd is not None
    assert (cause.seq, cause.odd.site) == (37, sample)
