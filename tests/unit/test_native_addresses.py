"""The core's dict by the id of objects, and what it keeps there, behave as Python's do."""

from __future__ import annotations

import gc
import random
import sys
import weakref
from math import prod
from pathlib import Path
from typing import Any

import pytest

from ncclscope import native
from ncclscope.readers import open_run
from ncclscope_patches.probes import works
from ncclscope_patches.probes.posting import plan, put_posting
from ncclscope_patches.probes.probe import Patch
from ncclscope_patches.probes.recording import Handle, Handles
from tests.support.rings import tracer_in

pytestmark = pytest.mark.skipif(native.core() is None, reason=native.why_not())


class Thing:
    pass


@pytest.mark.parametrize("spacing", [1, 8, 16, 1 << 32])
def test_it_holds_what_a_dict_holds(spacing: int) -> None:
    draw, ours, theirs = random.Random(spacing), native.by_address(), dict[int, Any]()
    assert type(ours) is not dict
    for step in range(20_000):
        key = draw.randrange(400) * spacing
        what = draw.random()
        if what < 0.5:
            ours[key] = theirs[key] = (step,)
        elif what < 0.9:
            assert ours.pop(key, None) == theirs.pop(key, None)
        else:
            assert ours.get(key) == theirs.get(key)
        assert len(ours) == len(theirs)
    assert sorted(ours.items()) == sorted(theirs.items())
    ours.clear()
    assert (len(ours), ours.get(0), list(ours.items())) == (0, None, [])
    ours[0] = 1
    assert ours.get(0) == 1


def test_it_frees_what_it_no_longer_holds() -> None:
    held, thing = native.by_address(), Thing()
    gone = weakref.ref(thing)
    before = sys.getrefcount(thing)
    held[1] = held[2] = thing
    assert sys.getrefcount(thing) == before + 2
    held[2] = None
    held.pop(1, None)
    assert sys.getrefcount(thing) == before
    held[3] = thing
    del thing
    assert gone() is not None
    held.clear()
    gc.collect()
    assert gone() is None


def test_what_ends_with_an_entry_may_change_the_table() -> None:
    held = native.by_address()

    class Last:
        def __del__(self) -> None:
            for number in range(1000):
                held[number] = number

    held[7] = Last()
    held[7] = "other"
    assert (held.get(7), len(held)) == (7, 1000)


@pytest.mark.parametrize("key", ["a", 1.5, None])
def test_a_key_that_is_no_id_is_refused(key: Any) -> None:
    held = native.by_address()
    for use in (held.get, lambda one: held.pop(one, None), lambda one: held.__setitem__(one, 1)):
        with pytest.raises(TypeError):
            use(key)


class Tensor:
    dtype = "float32"
    is_cpu = True

    def __init__(self, *shape: Any) -> None:
        self.shape = shape


class Library:
    def reduce(self, tensor: Tensor) -> Thing:
        return Thing()


class Probe(Patch):
    name = "test"


def after(handle: Handle, position: int, _args: Any, work: Any) -> None:
    """Note a call as the probes do where the core has not: in a process with many call sites."""
    works.expect((handle, position, True), work)


def test_shapes_and_places_in_turns_are_recorded_as_they_are(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("key", "tp:0", [0], "gloo")
    handles = Handles(lambda _thing: Handle(tracer, comm, waits=True))
    library: Any = type("Library", (Library,), {})
    probe = Probe()
    probe.active = True
    read = plan(lambda args, kwargs: ("all_reduce", args[1].shape, args[1].dtype), "all_reduce", 1)
    put_posting(probe, library, "reduce", read, handles, after=after, keeps_work=True)
    one, kept = library(), []
    # More kinds of calls than the core remembers, so that they take each other's places.
    shapes = [(n, *range(1, n % 6)) for n in range(1, 120)] + [(), (2**31,), (1, 2**31)]
    for _ in range(3):
        for shape in shapes:
            kept.append(one.reduce(Tensor(*shape)))
            one.reduce(Tensor(*shape))
    assert works.find(kept[-1])[2] is True  # type: ignore[index]
    works.pending.clear()
    probe.revert()
    tracer.close()
    log = open_run(rings).ranks[0].logs[comm.key]
    found = [tuple(call.shape or ()) for call in log.span(1, log.calls + 1)]
    wanted = [shape if len(shape) <= 4 else (*shape[:3], prod(shape[3:])) for shape in shapes]
    assert found == [shape for shape in wanted * 3 for _ in range(2)]
