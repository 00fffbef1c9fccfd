"""V-collectives are recorded with their sizes, in C as in Python, also once a list has expired."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ncclscope.tracing import scope
from ncclscope.tracing.tracer import Tracer
from ncclscope_patches.probes.posting import Read, plan, put_posting
from ncclscope_patches.probes.probe import Patch
from ncclscope_patches.probes.recording import Handle, Handles
from tests.support.rings import choose_core, read, tracer_in

NAMES = ("self", "output", "tensor", "sizes", "op")


class Tensor:
    shape = (4, 8)
    dtype = "float32"


class Library:
    """Enqueues calls."""

    def gather(self, output: Any, tensor: Tensor, sizes: Any, op: str = "sum") -> None:
        """Enqueue nothing."""


class Probe(Patch):
    name = "test"


class Job:
    """A traced library, and how often its reader in Python was asked."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.asked = 0
        self.library: Any = type("Library", (Library,), {})
        self.comm = comm = tracer.communicator("key", "tp:0", [0], "nccl")
        probe = Probe()
        probe.active = True
        planned = plan(self._reader(), "all_gatherv", 2, 4, 3, NAMES)
        handles = Handles(lambda _thing: Handle(tracer, comm))
        put_posting(probe, self.library, "gather", planned, handles)
        self.one = self.library()

    def _reader(self) -> Read:
        def reads(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
            self.asked += 1
            given = {**dict(zip(NAMES, args, strict=False)), **kwargs}
            tensor, redop = given["tensor"], given.get("op", "sum")
            sizes = tuple(given["sizes"])
            return "all_gatherv", tensor.shape, tensor.dtype, redop, None, None, None, sizes

        return reads

    def recorded(self) -> list[tuple[Any, Any]]:
        """Return sizes and reduction of each call in the ring."""
        calls = read(self.tracer.path).logs["key"].span(1, 10_000)
        return [(call.sizes, call.redop) for call in calls]


@pytest.fixture(params=["C", "Python"])
def job(request: pytest.FixtureRequest, rings: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    choose_core(request.param, monkeypatch)
    return Job(tracer_in(rings, capacity=4096))


def in_c(job: Job) -> bool:
    """Return whether the core records; Python before 3.11 does not show it the call site."""
    return type(job.library.gather).__name__ == "Replaced" and sys.version_info >= (3, 11)


def test_each_call_has_its_own_sizes_and_python_reads_the_first_of_them(job: Job) -> None:
    turns = [[4, 3], [3, 4], [4, 3, 0], [4]]
    for _ in range(3):
        for sizes in turns:
            job.one.gather(None, Tensor(), sizes)

    assert job.recorded() == [(tuple(sizes), "sum") for sizes in turns] * 3
    assert not in_c(job) or job.asked == len(turns)


def test_a_thread_inside_of_a_call_that_posts_others_leaves_the_rest_to_the_core(job: Job) -> None:
    inside, done = threading.Event(), threading.Event()

    def post() -> None:
        with scope.suppressed():
            job.one.gather(None, Tensor(), [4, 3])
            inside.set()
            done.wait(60)

    thread = threading.Thread(target=post)
    thread.start()
    assert inside.wait(60)
    for _ in range(3):
        job.one.gather(None, Tensor(), [4, 3])
    done.set()
    thread.join()

    assert len(job.recorded()) == 3
    assert not in_c(job) or job.asked == 1


def test_arguments_by_name_are_found_whatever_their_names_are_made_of(job: Job) -> None:
    tensor = Tensor()
    made = "".join(["si", "zes"]), "".join(["o", "p"])  # equal to the names, and not the same
    for _ in range(2):
        job.one.gather(None, tensor=tensor, sizes=(4, 3))
        job.one.gather(None, tensor, op="max", sizes=(4, 3))
        job.one.gather(None, tensor, **{made[0]: [4, 3], made[1]: "max"})

    assert [redop for _, redop in job.recorded()] == ["sum", "max", "max"] * 2
    assert {sizes for sizes, _ in job.recorded()} == {(4, 3)}


class Size(int):
    """A size that only Python can read."""


@pytest.mark.parametrize("sizes", [range(1, 90), (Size(4), 3), (2**40, 0), iter((1, 2))])
def test_what_the_core_does_not_read_python_does(job: Job, sizes: Any) -> None:
    given = [tuple(sizes)] * 3 if hasattr(sizes, "__next__") else [sizes] * 3
    for one in given:
        job.one.gather(None, Tensor(), one)
    assert job.recorded() == [(tuple(given[0]), "sum")] * 3


def test_a_list_that_was_overwritten_is_stored_again(job: Job) -> None:
    """The heap of this ring holds 1,024 lists of that length."""
    for _ in range(2):
        job.one.gather(None, Tensor(), [4, 3])
    for number in range(1500):
        job.tracer.record(job.comm, "all_gatherv", sizes=(number, 1), shape=(4, 8), dtype="float32")
    for _ in range(2):
        job.one.gather(None, Tensor(), [4, 3])

    assert job.recorded()[-2:] == [((4, 3), "sum")] * 2
    assert not in_c(job) or job.asked == 2
