"""Code of the program that runs below a collective's function, as pickling and plugins do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ncclscope.engine.processes.motion import Motion, read_motions
from ncclscope.model.snapshot import Frame, Worker
from tests.support.snapshots import C10D, in_collective, judged, snapshot, stack, worker

GATHER = in_collective("all_gather_object", 40)
WAITING = (*GATHER, *stack(f"{C10D}:4287 all_gather"))


def inside(*calls: str, below: Sequence[Frame] = ()) -> tuple[Frame, ...]:
    """Return a stack in `__reduce__` of the program, while its object is pickled."""
    own = Frame("P.__reduce__", "job.py", 37, installed=False, calls=calls)
    return (*GATHER, *stack(f"{C10D}:2900 _object_to_tensor"), own, *below)


def blocked(frames: Sequence[Frame], what: str, *more: Sequence[Frame], cpu: float = 0.0) -> Worker:
    one = worker(1, frames, *more, cpu=cpu)
    return replace(one, samples=tuple(replace(s, blocked=what) for s in one.samples))


def motion(one: Worker) -> Motion:
    return read_motions(snapshot([one, worker(99, WAITING)]))[one.rank]


@pytest.mark.parametrize(
    ("frames", "what", "text"),
    [
        (inside("time.sleep"), "sleep", "job.py:37 __reduce__ (sleeps)"),
        (inside("os.write"), "pipe", "job.py:37 __reduce__ (waits for a file or pipe)"),
        (inside("lock.acquire"), "futex", "job.py:37 __reduce__ (waits for a lock)"),
        (
            inside(below=stack("threading.py:1119 join")),
            "futex",
            "job.py:37 __reduce__ (waits for a lock)",
        ),
    ],
)
def test_the_program_that_blocks_below_a_collective_is_not_in_it(
    frames: Sequence[Frame], what: str, text: str
) -> None:
    found = motion(blocked(frames, what))

    assert (found.condition, found.op, found.text) == ("still", None, text)


def test_the_program_that_spins_below_a_collective_is_at_work() -> None:
    found = motion(blocked(inside(), "", cpu=2.0))

    assert (found.condition, found.op, found.text) == ("moving", None, "job.py:37 __reduce__")


@pytest.mark.parametrize(
    ("frames", "what"),
    [
        (inside("work.wait"), "futex"),
        (inside("backend.all_reduce"), "futex"),
        (inside("backend.all_reduce"), "sleep"),
        (inside("connection.recv"), "socket"),
        (inside(below=stack("queue.py:171 get")), "futex"),
        ((*inside(), *stack(f"{C10D}:4287 _wait")), "futex"),
        ((*GATHER, Frame("dump", "pickle.py", 9, installed=True, calls=("sleep",))), "sleep"),
    ],
)
def test_a_library_of_the_program_may_wait_for_a_peer_below_a_collective(
    frames: Sequence[Frame], what: str
) -> None:
    found = motion(blocked(frames, what))

    assert (found.condition, found.op) == ("still", "all_gather")


def test_a_library_of_the_program_that_changes_below_a_collective_waits_in_it() -> None:
    first, second = inside("time.sleep"), inside("poll")
    other = (*second[:-1], replace(second[-1], line=38, function="P.poll"))

    assert motion(blocked(first, "sleep", other)).op == "all_gather"


def test_of_two_ranks_the_one_that_sleeps_while_pickling_has_not_joined() -> None:
    verdict = judged(worker(0, WAITING), blocked(inside("time.sleep"), "sleep"), gap=12.0)

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("not_joined", (1,))
    assert "Rank 1 is at job.py:37 __reduce__ (sleeps)" in verdict.summary
