"""The replacement of a method behaves as a function does, in C as in Python."""

from __future__ import annotations

import functools
import gc
import inspect
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclscope import native
from ncclscope.tracing.tracer import Tracer
from ncclscope_patches.probes import works
from ncclscope_patches.probes.posting import plan, put_posting
from ncclscope_patches.probes.probe import Patch
from ncclscope_patches.probes.recording import Handle, Handles
from tests.support.rings import choose_core, read, tracer_in


class Tensor:
    shape = (4,)
    dtype = "float32"
    is_cpu = True


class Work:
    """What a call returns."""


class Library:
    """Enqueues calls."""

    disabled = False
    sends_first = False
    sent = 0

    def reduce(self, tensor: Tensor, *, fails: bool = False) -> Work:
        """Return a work."""
        if fails and not self.sends_first:
            raise ValueError("the library's own")
        self.sent += 1
        if fails:
            raise ValueError("the library's own")
        return Work()

    def _get_sequence_number_for_group(self) -> int:
        return self.sent


class Probe(Patch):
    name = "test"


Job = tuple[type[Library], Probe, Tracer]


@pytest.fixture(params=["C", "Python"])
def job(
    request: pytest.FixtureRequest, rings: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Job]:
    choose_core(request.param, monkeypatch)
    tracer = tracer_in(rings)
    comm = tracer.communicator("key", "tp:0", [0], "gloo")
    handles = Handles(lambda _thing: Handle(tracer, comm, waits=None))

    def returned(handle: Handle, position: int, args: tuple[Any, ...], work: Any) -> None:
        works.expect((handle, position, args[1].is_cpu), work)

    library = type("Library", (Library,), {})
    probe = Probe()
    probe.active = True
    read = plan(lambda args, kwargs: ("all_reduce", args[1].shape, args[1].dtype), "all_reduce", 1)
    put_posting(
        probe, library, "reduce", read, handles, can_be_off=True, after=returned, keeps_work=True
    )
    yield library, probe, tracer
    probe.revert()
    works.pending.clear()


def test_it_binds_and_describes_itself_as_a_function_does(job: Job) -> None:
    library, _, tracer = job
    one = library()
    for call in (one.reduce, functools.partial(library.reduce, one), library().reduce):
        assert isinstance(call(Tensor()), Work)
    assert library.reduce.__name__ == "reduce"
    assert library.reduce.__doc__ == "Return a work."
    assert [*inspect.signature(library.reduce).parameters] == ["self", "tensor", "fails"]
    assert tracer.ring.position == 3


def test_errors_and_missing_arguments_are_those_of_the_method(job: Job) -> None:
    library, probe, _ = job
    one = library()
    one.reduce(Tensor())
    for _ in range(3):
        with pytest.raises(ValueError, match="own"):
            one.reduce(Tensor(), fails=True)
    assert probe.active
    with pytest.raises(TypeError):
        library.reduce()


@pytest.mark.parametrize(("sends_first", "calls"), [(False, 2), (True, 5)])
def test_a_call_that_was_refused_before_it_was_sent_does_not_count(
    job: Job, sends_first: bool, calls: int
) -> None:
    library, probe, tracer = job
    one = library()
    one.sends_first = sends_first
    one.reduce(Tensor())
    for _ in range(3):
        with pytest.raises(ValueError, match="own"):
            one.reduce(Tensor(), fails=True)
    one.reduce(Tensor())

    rank = read(tracer.path)
    assert probe.active
    assert [call.seq for call in rank.logs["key"].span(1, 9)] == [*range(1, calls + 1)]
    assert (rank.records, rank.last_step()) == (5, None)


def test_an_instance_that_is_off_records_nothing(job: Job) -> None:
    library, _, tracer = job
    one = library()
    one.reduce(Tensor())
    one.disabled = True
    one.reduce(Tensor())
    assert tracer.ring.position == 1


def test_works_are_kept_until_they_are_waited_for(job: Job) -> None:
    library, _, tracer = job
    one, kept = library(), []
    for _ in range(3):  # the first call of a place is recorded by Python in both
        kept.append(one.reduce(Tensor()))
    assert [works.find(work)[1:] for work in kept] == [(0, True), (1, True), (2, True)]
    assert len(works.pending) == 3
    assert tracer.ring.position == 3


def test_an_inactive_probe_only_calls(job: Job) -> None:
    library, probe, tracer = job
    one = library()
    one.reduce(Tensor())
    probe.active = False
    assert isinstance(one.reduce(Tensor()), Work)
    assert tracer.ring.position == 1


def test_a_probe_that_is_taken_back_leaves_the_method(job: Job) -> None:
    library, probe, _ = job
    library().reduce(Tensor())
    probe.revert()
    assert library.reduce is Library.reduce


@pytest.mark.skipif(native.core() is None, reason=native.why_not())
def test_a_stand_in_that_nobody_has_any_more_is_freed() -> None:
    core, probe = native.core(), Probe()
    method = core.posting(core.addresses(), print, {}, {}, None)
    stand_in = core.replaced(print, probe, core.addresses(), print, method, None, set(), 0, False)
    stand_in.owner = probe
    probe.stand_in = stand_in  # as Patch keeps it
    gone = weakref.ref(probe)
    del probe, stand_in
    gc.collect()
    assert gone() is None
