"""Guarded torch operators: what they record, in C as in Python, and when they record nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclscope import native
from ncclscope.model import State
from ncclscope.readers.ring.ranks import read_ring
from ncclscope.tracing import scope
from ncclscope.tracing.tracer import Tracer
from ncclscope_patches.probes.operators import Plan, guard_operator, is_real
from ncclscope_patches.probes.probe import Patch
from ncclscope_patches.probes.recording import Handle, post_of, record
from tests.integration.c10d_ranks import fields
from tests.support.rings import choose_core, tracer_in

torch = pytest.importorskip("torch")

LIBRARY = torch.library.Library("ncclscope_test_operators", "DEF")
LIBRARY.define("reduce(int number, Tensor(a!) tensor) -> ()")
FAILURE = ValueError("the kernel's own")


def _reduce(number: int, tensor: Any) -> None:
    if tensor.numel() == 0:
        raise FAILURE


LIBRARY.impl("reduce", _reduce, "CPU")
LIBRARY.impl("reduce", lambda number, tensor: None, "Meta")
REDUCE = torch.ops.ncclscope_test_operators.reduce


class Probe(Patch):
    name = "test"


class Job:
    """A traced process whose operator has a guard."""

    def __init__(self, tracer: Tracer, probe: Probe) -> None:
        self.tracer = tracer
        self.probe = probe
        self.hooks: list[tuple[Any, ...]] = []
        """Arguments of the calls that the hook in Python got."""

    def calls(self) -> list[Any]:
        self.tracer.close()
        (log,) = read_ring(Path(self.tracer.path)).logs.values()
        return list(log.span(1, log.calls + 1))


@pytest.fixture(params=["C", "Python"])
def job(
    request: pytest.FixtureRequest, rings: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Job]:
    choose_core(request.param, monkeypatch)
    # Other tests leave threads blocked in such a block, for good.
    monkeypatch.setattr(scope, "suppressing", {})
    tracer = tracer_in(rings)
    handle = Handle(tracer, tracer.communicator("key", "tp:0", [0], "shm"), waits=True)
    probe = Probe()
    probe.active = True
    found = Job(tracer, probe)
    posts = native.by_address()
    if (post := post_of(handle)) is not None:
        posts[id(3)] = post

    def before(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
        number, tensor = args
        found.hooks.append(args)
        if number != 3 or not is_real(tensor):
            return None
        parameters = ("all_reduce", tensor.shape, tensor.dtype, "sum")
        return handle, record(handle, parameters, sys._getframe(1))

    def returned(token: Any, _result: Any) -> None:
        token[0].complete(token[1])

    guard_operator(probe, REDUCE, before, returned, Plan(posts, "all_reduce", 1, 2))
    yield found
    probe.revert()
    tracer.close()


def test_each_way_of_calling_is_one_completed_record(job: Job) -> None:
    for _ in range(3):
        REDUCE(3, torch.ones(4, 2))
        REDUCE.default(3, torch.ones(5))
        REDUCE(3, tensor=torch.ones(6))
    found = job.calls()
    assert [fields(one, "op", "shape", "dtype", "redop") for one in found] == [
        ("all_reduce", (4, 2), "float32", "sum"),
        ("all_reduce", (5,), "float32", "sum"),
        ("all_reduce", (6,), "float32", "sum"),
    ] * 3
    assert {one.state for one in found} == {State.COMPLETED}
    sites = [one.site for one in found]
    assert sites[:3] == sites[3:6] == sites[6:]
    assert len(set(sites)) == 3
    assert all(site.startswith(Path(__file__).name) for site in sites)


@pytest.mark.skipif(native.core() is None, reason=native.why_not())
@pytest.mark.parametrize("job", ["C"], indirect=True)
def test_the_core_records_calls_that_it_has_met(job: Job) -> None:
    for _ in range(5):
        REDUCE(3, torch.ones(4))
    assert len(job.hooks) == 1
    assert job.tracer.ring.position == 5


def test_a_call_that_raises_is_not_completed(job: Job) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="kernel's own"):
            REDUCE(3, torch.ones(0))
    assert [one.state for one in job.calls()] == [State.SCHEDULED] * 2


def test_calls_without_a_kernel_are_no_records(job: Job) -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Repeats(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any, kwargs: Any = None
        ) -> Any:
            return function(*args, **(kwargs or {}))

    class Calls(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any, kwargs: Any = None
        ) -> Any:
            return function(*args, **(kwargs or {}))

    for _ in range(2):
        REDUCE(3, torch.ones(4))
        REDUCE(3, torch.ones(4, device="meta"))
        REDUCE(7, torch.ones(4))
        for mode in (Repeats(), Calls()):
            with mode:  # which calls it again without the mode: one record
                REDUCE(3, torch.ones(4))
    assert job.tracer.ring.position == 6


def test_a_switched_off_probe_and_one_taken_back_only_call(job: Job) -> None:
    REDUCE(3, torch.ones(4))
    job.probe.active = False
    REDUCE(3, torch.ones(4))
    job.probe.active = True
    job.probe.revert()
    REDUCE(3, torch.ones(4))
    assert job.tracer.ring.position == 1
