"""Process groups in verdicts from stacks: which exist, and who may wait in which."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ncclscope.attach.host.sockets import accepted
from ncclscope.attach.source_lines import called_before, loop_around, makers
from ncclscope.attach.stacks import parse_dump
from ncclscope.engine.processes.groups import groups_of
from ncclscope.engine.processes.judgement import Judgement
from ncclscope.engine.processes.motion import read_motions
from ncclscope.engine.processes.stack_verdict import judge_stacks
from ncclscope.model.snapshot import Frame, ProcessSample, Worker
from tests.support.snapshots import C10D, elsewhere, snapshot, stack, worker

LOGGER = "torch/distributed/c10d_logger.py"
LOCK = stack("train.py:1 <module>", "train.py:7 main", "filelock/_api.py:300 acquire")
STORE = ((0, 1, 2, 3, 4, 5),)
MESH = {  # ranks by whom they accepted, as gloo connects a mesh of three by two
    0: (*STORE, (1,), (2,)),
    1: ((0, 2, 5), (3,)),
    2: ((3,), (0,)),
    3: ((0, 1, 2, 4, 5),),
    4: ((0, 1, 2, 5), (0, 2)),
    5: ((1, 3), (4,), (0, 2)),
}
PAIRS = {0: ((0, 1, 2, 3), (1, 2, 3), (1,)), 1: ((2, 3),), 2: (), 3: ((2,), (2,))}
"""Groups of ranks 0 1 and of ranks 2 3."""
TRIOS = {0: ((1, 2, 3, 4, 5), (1, 2)), 1: ((2, 3, 4, 5), (2,)), 2: ((3, 4, 5),)} | {
    3: ((4, 5), (4, 5)),
    4: ((5,), (5,)),
}
WHOLE = {0: ((1, 2, 3), (1, 2, 3)), 1: ((2, 3), (2, 3)), 2: ((3,), (3,))}
"""Two groups of all ranks."""


def call(
    op: str,
    line: int,
    group: str = "default",
    peers: tuple[int, ...] = (),
    loop: tuple[int, ...] = (),
) -> tuple[Frame, ...]:
    """Return a stack in a call of torch, with what its arguments show."""
    *outer, wrapper, inner = stack(
        "train.py:1 <module>", f"train.py:{line} main", f"{LOGGER}:83 wrapper", f"{C10D}:3000 {op}"
    )
    outer[-1] = replace(outer[-1], loop=loop)
    return (*outer, replace(wrapper, group=group), replace(inner, peers=peers))


def job(
    places: Sequence[Sequence[Frame]],
    meeting: Mapping[int, tuple[tuple[int, ...], ...]] | None = None,
) -> list[Worker]:
    return [
        worker(rank, place, world_size=len(places), accepted=(meeting or {}).get(rank, ()))
        for rank, place in enumerate(places)
    ]


def judge(
    places: Sequence[Sequence[Frame]],
    meeting: Mapping[int, tuple[tuple[int, ...], ...]] | None = None,
) -> Judgement:
    (found,) = parts(places, meeting)
    return found


def parts(
    places: Sequence[Sequence[Frame]],
    meeting: Mapping[int, tuple[tuple[int, ...], ...]] | None = None,
) -> list[Judgement]:
    return judge_stacks(list(read_motions(snapshot(job(places, meeting), 12.0)).values()), 12.0)


def named(found: Judgement) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return found.diverging_ranks, found.candidate_ranks


BARRIER, REDUCE = call("barrier", 30), call("all_reduce", 28)
IN_GROUP = call("all_to_all_single", 20, "given", loop=(12, 29))


# --- which groups exist -------------------------------------------------------------------------


def test_connections_show_the_groups_of_a_mesh() -> None:
    groups = groups_of(job([REDUCE] * 6, MESH))

    assert groups is not None
    assert sorted(map(sorted, groups)) == [
        [0, 1], [0, 1, 2, 3, 4, 5], [0, 2, 4], [1, 3, 5], [2, 3], [4, 5]
    ]  # fmt: skip


@pytest.mark.parametrize(
    "meeting",
    [
        {},
        {**PAIRS, 0: ((1,),)},  # no group of all: another backend has it
        {**PAIRS, 3: ()},  # ranks 2 and 3 of that group are not connected
    ],
)
def test_groups_are_unknown_where_connections_do_not_add_up(
    meeting: Mapping[int, tuple[tuple[int, ...], ...]],
) -> None:
    assert groups_of(job([REDUCE] * 4, meeting)) is None


def test_servers_of_the_program_are_no_groups() -> None:
    visited = {**PAIRS, 1: (*PAIRS[1], (-1, -1), (-1, 2), (0, 0, 1, 2))}

    assert groups_of(job([REDUCE] * 4, visited)) == groups_of(job([REDUCE] * 4, PAIRS))


def test_groups_of_nccl_and_of_other_hosts_are_unknown() -> None:
    workers = job([REDUCE] * 4, PAIRS)
    sample = ProcessSample(threads={"cuda-EvtHandlr": 1})

    assert groups_of(workers) is not None
    assert groups_of([replace(workers[0], samples=(sample,)), *workers[1:]]) is None
    assert groups_of([replace(workers[0], host="other"), *workers[1:]]) is None
    assert groups_of(workers[:3]) is None


# --- who may wait in which ----------------------------------------------------------------------


def test_a_rank_that_waits_for_its_partner_is_not_named() -> None:
    found = judge([IN_GROUP, REDUCE, REDUCE, REDUCE], PAIRS)

    assert named(found) == ((), (0, 1))
    assert (found.kind, found.confidence) == ("not_joined", "ambiguous")


def test_a_rank_in_a_loop_that_all_others_have_left_is_named() -> None:
    assert named(judge([IN_GROUP, BARRIER, BARRIER, BARRIER], PAIRS)) == ((0,), ())


def test_a_rank_behind_a_call_of_a_loop_that_all_others_have_left_has_met_them_in_it() -> None:
    outer, main, *inner = IN_GROUP
    behind = (outer, replace(main, before=("range", "dist.all_reduce")), *inner)
    assert named(judge([behind, BARRIER, BARRIER, BARRIER], PAIRS)) == ((), (0, 1))


def test_a_rank_in_a_later_iteration_has_left_out_the_call_of_all_others() -> None:
    def at(line: int, step: int, group: str) -> tuple[Frame, ...]:
        outer, main, *inner = call("all_reduce", line, group)
        return (outer, replace(main, counters={"step": step}), *inner)

    later, earlier = at(22, 7, "given"), at(22, 6, "given")
    peers = [at(25, 6, "default")] * 3

    assert named(judge([later, *peers], PAIRS)) == ((0,), ())
    assert named(judge([earlier, *peers], PAIRS)) == ((), (0, 1))


def test_calls_of_different_iterations_are_not_one_call() -> None:
    def at(op: str, line: int, step: int) -> tuple[Frame, ...]:
        outer, main, *inner = call(op, line)
        return (outer, replace(main, counters={"step": step}), *inner)

    ahead, behind = at("all_reduce", 30, 10), at("all_reduce", 28, 9)
    other = at("all_gather", 23, 10)

    assert named(judge([ahead, other, ahead, behind])) == ((), (0, 1, 2, 3))
    assert named(judge([ahead, other, ahead, at("all_reduce", 28, 10)])) == ((1,), ())


def test_calls_of_different_groups_may_be_of_different_iterations() -> None:
    def at(line: int, step: int, group: str) -> tuple[Frame, ...]:
        outer, main, *inner = call("all_reduce", line, group)
        return (outer, replace(main, counters={"step": step}), *inner)

    own, all_ranks = at(28, 5, "given"), at(25, 6, "default")
    extra = call("all_gather", 26, "given")

    assert named(judge([own, extra, own, *[all_ranks] * 3], TRIOS)) == ((1,), ())


def test_a_minority_of_its_group_is_named() -> None:
    assert named(judge([REDUCE, IN_GROUP, *[REDUCE] * 4], TRIOS)) == ((1,), ())
    assert named(judge([REDUCE, IN_GROUP, IN_GROUP, *[REDUCE] * 3], MESH)) == ((), (0, 1, 2, 3))


def test_who_is_missing_in_the_only_group_of_two_others_is_named() -> None:
    places = [REDUCE, REDUCE, REDUCE, IN_GROUP, REDUCE, IN_GROUP]

    found = judge(places, TRIOS)

    assert named(found) == ((4,), ())
    assert (found.kind, found.confidence) == ("not_joined", "likely")


@pytest.mark.parametrize(
    ("group", "known", "expected"),
    [
        ("given", True, ((1,), ())),
        ("given", False, ((), (0, 1))),  # either may be no member
        ("default", True, ((0, 1), ())),
    ],
)
def test_a_rank_elsewhere_is_missing_in_groups_that_it_is_in(
    group: str, known: bool, expected: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    workers = {0: ((1, 2, 3, 4),), 1: ((2, 3, 4), (2, 3, 4)), 2: ((3, 4), (3, 4)), 3: ((4,), (4,))}
    inside = call("all_reduce", 28, group)

    found = judge([LOCK, LOCK, inside, inside, inside], workers if known else None)

    assert named(found) == expected


def test_a_group_of_all_ranks_may_be_given_by_name() -> None:
    assert named(judge([IN_GROUP, REDUCE, REDUCE, REDUCE], WHOLE)) == ((0,), ())


def test_without_known_groups_the_partner_may_be_any_rank() -> None:
    assert named(judge([IN_GROUP, REDUCE, REDUCE, REDUCE])) == ((), (0, 1, 2, 3))


def test_where_all_calls_name_a_group_it_may_be_that_of_all() -> None:
    reduce = call("all_reduce", 28, "given")

    assert named(judge([IN_GROUP, reduce, reduce, reduce])) == ((0,), ())


def test_those_who_left_out_calls_of_two_groups_are_named() -> None:
    reduce = call("all_reduce", 23, "given")
    places = [REDUCE if rank in (1, 4) else reduce for rank in range(6)]

    assert named(judge(places, MESH)) == ((1, 4), ())


def test_ranks_whose_group_would_have_met_are_candidates() -> None:
    """All other pairs have passed the barrier; one of ranks 1 and 4 is in that of its trio."""

    def at(op: str, line: int, step: int) -> tuple[Frame, ...]:
        outer, main, *inner = call(op, line, "given")
        return (outer, replace(main, counters={"step": step}), *inner)

    fence, reduce = at("barrier", 23, 8), at("all_reduce", 18, 9)
    places = [fence if rank in (2, 3) else reduce for rank in range(6)]
    ahead = [at("barrier", 23, 10) if rank in (2, 3) else reduce for rank in range(6)]

    assert named(judge(places, MESH)) == ((), (2, 3))
    assert named(judge(ahead, MESH)) == ((2, 3), ())


def test_who_sends_to_receivers_that_went_on_may_lack_one_of_them() -> None:
    """Rank 0 sends an object in two calls; one receiver took the first alone, and went on."""
    assert named(judge([call("broadcast", 16), REDUCE, REDUCE])) == ((), (0, 1, 2))
    assert named(judge([call("all_gather", 16), REDUCE, REDUCE])) == ((0,), ())
    receiver = call("broadcast", 16, peers=(1,))
    assert named(judge([receiver, REDUCE, REDUCE])) == ((0,), ())


def test_who_went_on_from_a_call_with_a_root_is_ahead_of_those_in_it() -> None:
    """Senders go on from a reduction; receivers from a scatter, whose root waits for one more."""
    root, sender = call("reduce", 16, peers=(1,)), call("reduce", 16, peers=(2,))
    assert named(judge([REDUCE, root, sender])) == ((), (0, 1, 2))
    source, astray = call("scatter", 16, peers=(3,)), call("scatter", 16, peers=(1,))
    assert named(judge([REDUCE, REDUCE, REDUCE, source, astray])) == ((), (0, 1, 2, 3, 4))
    assert named(judge([REDUCE, REDUCE, REDUCE, REDUCE, astray])) == ((4,), ())


def test_who_has_left_the_loop_of_all_receivers_waits_for_all_of_them() -> None:
    """None of them has come to the broadcast, so that none can have gone on."""
    root, inner = call("broadcast", 35), call("all_reduce", 23, loop=(12, 29))
    assert named(judge([root, inner, inner])) == ((0,), ())
    again = call("broadcast", 35, loop=(10, 36))
    assert named(judge([again, inner, inner])) == ((), (0, 1, 2))


def test_ranks_in_one_line_are_no_majority_if_one_shares_no_group_with_the_other() -> None:
    """Ranks 0 and 1 are a pair, and wait in a call that rank 2 or rank 3 keeps from them."""
    square = {0: ((1, 2, 3), (1,), (2,)), 1: ((2, 3), (3,)), 2: ((3,), (3,))}
    reduce = call("all_reduce", 23, "given")

    assert named(judge([reduce, reduce, reduce, REDUCE], square)) == ((), (0, 1, 2, 3))
    assert named(judge([reduce, reduce, reduce, REDUCE], WHOLE)) == ((3,), ())


def test_a_pair_in_one_line_waits_for_the_rank_apart_if_it_has_no_other_group_alone() -> None:
    """Ranks 0 and 2 are a pair, and would have met; rank 3 is in no group without rank 1."""
    pair = {0: ((1, 2, 3), (2,)), 1: ((2, 3),), 2: ((3,),), 3: ()}
    reduce, creation = call("all_reduce", 23, "given"), call("new_group", 21)

    assert named(judge([reduce, creation, reduce, reduce], pair)) == ((1,), ())


def test_ranks_in_different_calls_of_a_group_of_their_own_wait_for_nobody_else() -> None:
    """Rank 1 keeps its trio waiting, and something else the other one."""
    reduce, gather = call("all_reduce", 28, "given"), call("all_gather", 26, "given")
    away = elsewhere(31)

    assert named(judge([reduce, away, *[reduce] * 4], TRIOS)) == ((1,), ())
    found = parts([reduce, away, *[reduce] * 3, gather], TRIOS)
    assert [one.diverging_ranks for one in found] == [(1,), (5,)]
    assert named(judge([reduce, away, gather, *[reduce] * 3], TRIOS)) == ((1,), ())


def test_of_two_rings_each_has_its_own_verdict() -> None:
    """Rank 5 keeps its ring waiting, and the ranks of the other one wait for each other."""
    ring = [call("recv", 17, peers=(rank - 1 if rank % 3 else rank + 2,)) for rank in range(5)]
    away = elsewhere(31)

    found = parts([*ring, away])

    assert [named(one) for one in found] == [((5,), ()), ((), (0, 1, 2))]
    assert named(judge([*ring, call("recv", 17, peers=(4,))])) == ((), (0, 1, 2, 3, 4, 5))
    assert named(judge([*ring[:3], away, away, away])) == ((), (0, 1, 2))
    assert named(judge([BARRIER, *ring[1:], away])) == ((5,), ())


def test_ranks_in_a_call_of_all_wait_for_those_that_a_smaller_group_keeps() -> None:
    reduce, gather = call("all_reduce", 28, "given"), call("all_gather", 26, "given")

    assert named(judge([BARRIER, BARRIER, BARRIER, reduce, reduce, gather], TRIOS)) == ((5,), ())
    found = parts([BARRIER, elsewhere(31), BARRIER, reduce, reduce, gather], TRIOS)
    assert [one.diverging_ranks for one in found] == [(1,), (5,)]


def test_works_of_no_known_group_may_be_what_a_rank_apart_keeps() -> None:
    """Ranks 3 and 5 wait for works, and rank 4 for them: not all of that is rank 1's doing."""
    *outer, last = stack("train.py:1 <module>", "train.py:9 main")
    works = (*outer, replace(last, calls=("work.wait",)))
    reduce, gather = call("all_reduce", 28, "given"), call("all_gather", 26, "given")
    places = [reduce, elsewhere(31), reduce, works, gather, works]
    workers = [
        replace(one, samples=tuple(replace(sample, blocked="futex") for sample in one.samples))
        for one in job(places, TRIOS)
    ]

    (found,) = judge_stacks(list(read_motions(snapshot(workers, 12.0)).values()), 12.0)

    assert named(found) == ((), (1, 3, 4, 5))


def test_a_majority_of_two_iterations_is_no_single_call() -> None:
    """Rank 3 is in the call of the iteration before, at the same line as its peers."""

    def at(op: str, line: int, step: int) -> tuple[Frame, ...]:
        outer, main, *inner = call(op, line)
        return (outer, replace(main, counters={"step": step}), *inner)

    reduce, behind = at("all_reduce", 28, 12), at("all_reduce", 28, 11)
    other = at("gather", 33, 11)

    assert named(judge([reduce, other, reduce, behind, reduce])) == ((), (1, 3))
    assert named(judge([reduce, other, reduce, reduce, reduce])) == ((1,), ())


def test_ranks_in_several_calls_of_one_function_of_torch_are_in_one_call() -> None:
    """The root sends the size of an object, and the others wait for the object."""

    def inside(line: int) -> tuple[Frame, ...]:
        outer = stack("train.py:1 <module>", "train.py:16 main", f"{LOGGER}:83 wrapper")
        inner = stack(f"{C10D}:{line} broadcast_object_list", f"{LOGGER}:83 wrapper")
        *calls, last = (*inner, *stack(f"{C10D}:3151 broadcast"))
        return (*outer, replace(calls[0], peers=(0,)), *calls[1:], last)

    assert named(judge([inside(4026), inside(4045), BARRIER, inside(4045)])) == ((2,), ())
    assert named(judge([REDUCE, REDUCE, REDUCE, inside(4026)])) == ((3,), ())


def test_who_has_left_a_call_of_a_group_stays_a_candidate() -> None:
    """The root of a broadcast waits; a member that received is where most ranks are."""
    root, reduce = call("broadcast", 25, "given", (1,)), call("all_reduce", 27, "given")

    found = judge([REDUCE, root, REDUCE, REDUCE, REDUCE, reduce], MESH)

    assert named(found) == ((), (0, 1, 3, 4, 5))


def test_the_outermost_function_has_the_arguments_as_passed() -> None:
    """A function of objects passes the default group on by name."""
    inner = call("all_gather", 20, "given")
    gather = (*call("all_gather_object", 20), *inner[-2:])

    assert named(judge([gather, REDUCE, REDUCE, REDUCE], PAIRS)) == ((0,), ())


def test_waits_for_works_at_several_lines_are_no_majority_in_one_call() -> None:
    def waits(line: int) -> tuple[Frame, ...]:
        place = "torch/distributed/_functional_collectives.py:900 wait_tensor"
        return stack("train.py:1 <module>", f"train.py:{line} main", place)

    places = [
        call("all_reduce", 45, "given"),
        waits(23),
        waits(23),
        waits(28),
        waits(24),
        waits(28),
    ]

    assert named(judge(places)) == ((), (0, 1, 2, 3, 4, 5))


# --- which one rank alone may keep all others ---------------------------------------------------


def test_the_root_of_a_scatter_waits_for_who_is_in_none_of_the_calls_of_others() -> None:
    """Rank 2 left out the scatter and what follows it, and waits for the next length."""
    root, length = call("scatter", 16, peers=(0,)), call("broadcast", 12, peers=(0,))

    found = judge([root, REDUCE, length, REDUCE])

    assert named(found) == ((2,), ())
    assert found.summary.startswith("Rank 2 is in broadcast at train.py:12 main, while ranks 1 3")
    assert named(judge([root, REDUCE, call("broadcast", 12), REDUCE]))[1] == (0, 1, 2, 3)
    assert named(judge([call("barrier", 16), REDUCE, length, REDUCE]))[1] == (0, 1, 2, 3)


def test_who_is_past_a_call_in_which_its_group_waits_has_left_it_out() -> None:
    """Rank 4 may wait in either of its groups; two ranks wait for it in one, a line before."""

    def at(line: int, step: int | None = 9) -> tuple[Frame, ...]:
        outer, main, *inner = call("all_reduce", line, "given", loop=(10, 30))
        return (outer, replace(main, counters={} if step is None else {"step": step}), *inner)

    def places(*numbers: int | None) -> list[tuple[Frame, ...]]:
        loss, check, reduce = (
            at(line, step) for line, step in zip((12, 14, 20), numbers, strict=True)
        )
        return [loss, reduce, loss, reduce, check, reduce]

    assert named(judge(places(9, 9, 9), MESH)) == ((4,), ())
    assert named(judge(places(None, None, None), MESH)) == ((), (0, 1, 2, 3, 4, 5))
    assert named(judge(places(9, 8, 9), MESH))[0] == ()


def test_of_two_faults_none_is_that_of_a_rank_alone() -> None:
    """Rank 0 left out a gather of its trio, and rank 3 is in another call than the other one."""
    gather, other = call("all_gather", 12, "given"), call("all_reduce", 16, "given")
    scatter = call("all_to_all", 18, "given")

    found = judge([scatter, scatter, gather, other, gather, scatter], MESH)

    assert named(found) == ((), (0, 1, 2, 3, 4, 5))


def test_works_and_transfers_have_no_known_order() -> None:
    root, length = call("scatter", 16, peers=(0,)), call("broadcast", 12, peers=(0,))

    assert named(judge([root, REDUCE, length, call("recv", 28, peers=(0,))]))[0] == ()


# --- transfers, and waits outside of the job ----------------------------------------------------


def test_candidates_are_those_in_whom_all_chains_of_waiting_end() -> None:
    receive = call("recv", 17, peers=(2,))

    assert named(judge([REDUCE, REDUCE, REDUCE, receive])) == ((), (2, 3))


def test_a_transfer_without_a_known_peer_may_be_with_any_rank() -> None:
    assert named(judge([REDUCE, REDUCE, REDUCE, call("recv", 17)])) == ((), (0, 1, 2, 3))


def test_a_rank_a_step_ahead_in_a_ring_is_not_named() -> None:
    def waits(step: int) -> tuple[Frame, ...]:
        *outer, last = stack("train.py:1 <module>", "train.py:9 main")
        return (*outer, replace(last, counters={"step": step}, calls=("transfer.wait",)))

    workers = [
        replace(one, samples=tuple(replace(sample, blocked="futex") for sample in one.samples))
        for one in job([waits(8), waits(9), waits(8)])
    ]
    (found,) = judge_stacks(list(read_motions(snapshot(workers, 12.0)).values()), 12.0)

    assert named(found) == ((), (0, 1, 2))


@pytest.mark.parametrize(
    ("makers", "expected"),
    [
        (("torch.ones", "dist.all_reduce"), ((1,), ())),
        (("dist.isend", "dist.irecv"), ((), (0, 1, 2))),
        (("dist.batch_isend_irecv",), ((), (0, 1, 2))),
        (("launch",), ((), (0, 1, 2))),
    ],
)
def test_a_wait_for_work_is_one_in_the_collective_that_made_it(
    makers: tuple[str, ...], expected: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    *outer, last = stack("train.py:1 <module>", "train.py:9 main")
    waits = (*outer, replace(last, calls=("work.wait",), makers=makers))
    workers = [
        replace(one, samples=tuple(replace(sample, blocked="futex") for sample in one.samples))
        for one in job([waits, BARRIER, waits])
    ]
    (found,) = judge_stacks(list(read_motions(snapshot(workers, 12.0)).values()), 12.0)

    assert named(found) == expected


def test_a_majority_that_waits_at_a_lock_has_not_gone_on() -> None:
    assert named(judge([BARRIER, LOCK, LOCK, LOCK])) == ((), (0, 1, 2, 3))
    assert named(judge([BARRIER, *[elsewhere(5)] * 3])) == ((0,), ())


# --- what the live processes show ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "group"),
    [
        ({"args": "(<Tensor at 0x7f>)", "kwargs": "{}"}, "default"),
        ({"args": "(<Tensor at 0x7f>)", "kwargs": '{"group": None}'}, "default"),
        ({"args": "()", "kwargs": '{"group": <torch._C.ProcessGroup at 0x7f>}'}, "given"),
        ({"args": "(<Tensor at 0x7f>, <torch._C.ProcessGroup at 0x7f>)", "kwargs": "{}"}, "given"),
        ({"args": "([<Tensor at 0x7f>, <Te...", "kwargs": "{}"}, ""),
        ({"group": "None"}, "default"),
        ({"group": "<torch._C.ProcessGroup at 0x7f>"}, ""),  # it may replace None
        ({}, ""),
    ],
)
def test_arguments_show_whether_a_call_names_a_group(
    variables: Mapping[str, str], group: str
) -> None:
    assert frame_of(LOGGER, variables).group == group
    assert frame_of("train.py", variables).group == ""


def test_arguments_show_the_peer_of_a_transfer() -> None:
    assert frame_of(C10D, {"src": "3", "tensor": "7"}).peers == (3,)
    assert frame_of(C10D, {"dst": "None"}).peers == ()
    assert frame_of("train.py", {"src": "3"}).peers == ()


def frame_of(file: str, variables: Mapping[str, str]) -> Frame:
    found = [{"name": name, "repr": text} for name, text in variables.items()]
    frame = {"name": "wrapper", "short_filename": file, "line": 83, "locals": found}
    (thread,) = parse_dump(json.dumps([{"frames": [frame]}]).encode()).threads
    return thread.frames[0]


def test_a_line_is_in_the_outermost_loop_of_its_function(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "for epoch in range(3):\n"
        "    def step():\n"
        "        first()\n"
        "        while True:\n"
        "            for layer in layers:\n"
        "                second()\n"
        "        third()\n"
        "    step()\n"
    )
    os.utime(path, (0, 0))  # it is older than the process

    found = [loop_around(os.getpid(), str(path), line) for line in (3, 6, 7, 8, 99)]

    assert found == [(), (4, 6), (), (1, 8), ()]


def test_what_a_loop_calls_above_a_line_is_known(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "begin()\n"
        "for step in range(3):\n"
        "    dist.all_reduce(x)\n"
        "    if step:\n"
        "        dist.barrier()\n"
        "    dist.all_reduce(last(x))\n"
        "    end()\n"
    )
    os.utime(path, (0, 0))  # it is older than the process

    found = [called_before(os.getpid(), str(path), line) for line in (1, 3, 6, 99)]

    assert [{*names} for names in found] == [
        set(),
        set(),
        {"dist.all_reduce", "dist.barrier"},
        set(),
    ]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("work.wait()", ("dist.all_reduce",)),
        ("dist.isend(x, 1).wait()", ("dist.isend",)),
        ("for one in works: one.wait()", ("dist.irecv", "torch.empty")),
        ("[one.wait() for one in works]", ("dist.irecv", "torch.empty")),
        ("other.wait()", ()),
        ("work.done()", ()),
    ],
)
def test_what_a_line_waits_for_was_made_in_its_function(
    tmp_path: Path, line: str, names: tuple[str, ...]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "def earlier():\n"
        "    other = dist.barrier(async_op=True)\n"
        "def step():\n"
        "    works = []\n"
        "    work = dist.all_reduce(x, async_op=True)\n"
        "    works.append(dist.irecv(torch.empty(4), 1))\n"
        f"    {line}\n"
    )
    os.utime(path, (0, 0))  # it is older than the process

    assert tuple(sorted(makers(os.getpid(), str(path), 7))) == names


def test_connections_are_accepted_from_ranks(tmp_path: Path) -> None:
    listens = entry("127.0.0.1:1000", "0.0.0.0:0", "0A", 1)
    table = [
        listens,
        entry("127.0.0.1:1000", "127.0.0.1:2000", "01", 2),
        entry("127.0.0.1:1000", "127.0.0.1:3000", "01", 3),
        entry("127.0.0.1:2000", "127.0.0.1:1000", "01", 4),
    ]
    for pid, inodes in {5: (1, 2, 3), 6: (4,)}.items():
        (tmp_path / f"{pid}/fd").mkdir(parents=True)
        (tmp_path / f"{pid}/net").mkdir()
        (tmp_path / f"{pid}/net/tcp").write_text("\n".join(["header", *table]))
        for inode in inodes:
            os.symlink(f"socket:[{inode}]", tmp_path / f"{pid}/fd/{inode}")

    assert accepted({5: 0, 6: 1}, tmp_path) == {5: ((-1, 1),), 6: ()}


def entry(local: str, remote: str, state: str, inode: int) -> str:
    """Return a line of /proc/PID/net/tcp."""
    return f"0: {_hex(local)} {_hex(remote)} {state} 0:0 00:0 0 1000 0 {inode} 1 0"


def _hex(address: str) -> str:
    host, _, port = address.partition(":")
    return f"{bytes(map(int, host.split('.')))[::-1].hex()}:{int(port):04X}"
