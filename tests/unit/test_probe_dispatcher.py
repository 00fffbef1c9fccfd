"""Calls that C++ posts, in one process on torch's fake group of two ranks."""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclscope import native, open_run
from ncclscope.model import Call, State
from ncclscope.tracing import callsite, coverage, scope, session
from ncclscope_patches.probes.c10d import C10dProbe
from ncclscope_patches.probes.from_cpp import dispatcher
from ncclscope_patches.probes.from_cpp.backward import BackwardNote
from ncclscope_patches.probes.from_cpp.dispatcher import DispatcherProbe, record_from_now, waiting
from ncclscope_patches.probes.functional import FunctionalProbe
from tests.support.hosts import until

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
functional = pytest.importorskip("torch.distributed._functional_collectives")


@pytest.fixture
def rings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("NCCLSCOPE_DIR", str(tmp_path))
    session._reset()
    probes = [BackwardNote(), DispatcherProbe(), C10dProbe(), FunctionalProbe()]
    for probe in probes:
        probe.apply()
    dist.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=2)
    yield tmp_path
    dist.destroy_process_group()
    for probe in reversed(probes):
        probe.revert()
    session._reset()
    assert not scope.listeners
    assert not scope.is_announced()


@pytest.fixture(autouse=True, params=[False, True], ids=["any reduction", "sums"])
def sums(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether C++ posts no reduction but sums, which the core records."""
    monkeypatch.setattr(sys.modules[__name__], "_sums", request.param)
    is_sum: bool = request.param
    return is_sum


_sums = False


def listen() -> None:
    record_from_now("compiled", "the test posts from C++", sums=_sums)


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets the calls that Python records."""
    calls: list[Any] = []
    record = dispatcher.record

    def counted(*args: Any) -> int:
        calls.append(args)
        return record(*args)

    monkeypatch.setattr(dispatcher, "record", counted)
    return calls


def from_cpp(values: Any = None) -> Any:
    """Post an all_reduce as C++ does, past the probes on Python's functions."""
    post, _ = torch._C._jit_get_operation("_c10d_functional::all_reduce")
    wait, _ = torch._C._jit_get_operation("_c10d_functional::wait_tensor")
    values = torch.ones(3) if values is None else values
    return wait(post(values, "sum", dist.group.WORLD.group_name))


def recorded(rings: Path) -> list[Call]:
    (rank,) = open_run(rings).ranks
    (log,) = [log for log in rank.logs.values() if log.communicator.label == "world"]
    return list(log.span(1, log.calls + 1))


def test_nothing_is_installed_before_c_may_post(rings: Path) -> None:
    from_cpp()
    dist.all_reduce(torch.ones(2))
    assert not scope.listeners
    assert [call.shape for call in recorded(rings)] == [(2,)]


def test_a_call_is_recorded_once_whoever_posts_it(rings: Path) -> None:
    listen()
    listen()
    from_cpp()
    dist.all_reduce(torch.ones(2))
    functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
    with torch.inference_mode():
        from_cpp(torch.ones(5))
    assert [call.shape for call in recorded(rings)] == [(3,), (2,), (4,), (5,)]
    assert not scope.is_announced()


def test_a_call_that_raises_leaves_nothing_announced(rings: Path) -> None:
    listen()
    with pytest.raises(TypeError):
        dist.group.WORLD.allreduce([torch.ones(2)], "no options")
    with pytest.raises(RuntimeError):
        torch.ops._c10d_functional.all_reduce(torch.ones(2), "no reduction", "0")
    assert not scope.is_announced()
    from_cpp()
    assert recorded(rings)[-1].shape == (3,)


def test_the_core_records_sums_that_it_has_met(
    rings: Path, sums: bool, in_python: list[Any]
) -> None:
    listen()
    for _ in range(5):
        from_cpp()
    assert len(in_python) == (1 if sums and native.core() else 5)
    calls = recorded(rings)
    assert len(calls) == 5
    assert {(call.op, call.shape, call.redop, call.site) for call in calls} == {
        ("all_reduce", (3,), "sum", calls[0].site)
    }


def test_the_core_leaves_calls_to_python_once_not_all_are_sums(
    rings: Path, sums: bool, in_python: list[Any]
) -> None:
    listen()
    for _ in range(3):
        from_cpp()
    before = len(in_python)
    record_from_now("compiled", "the test posts from C++")
    for _ in range(3):
        from_cpp()
    assert len(in_python) == before + (0 if not dispatcher.reads_reductions() and sums else 3)
    assert len(recorded(rings)) == 6


def test_threads_without_frames_post_at_the_line_of_the_backward(
    rings: Path, sums: bool, in_python: list[Any]
) -> None:
    """A function in C, called in a thread of its own, has no frame around it."""
    listen()
    post, _ = torch._C._jit_get_operation("_c10d_functional::all_reduce")
    name = dist.group.WORLD.group_name

    class Posting(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, values: Any) -> Any:
            return values.clone()

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            tracer = session.current()
            assert tracer is not None
            for _ in range(3):
                expected = tracer.ring.position + 1
                _thread.start_new_thread(post, (torch.ones(3), "sum", name))
                until(lambda: tracer.ring.position == expected, "a record")  # noqa: B023
            return gradient

    Posting.apply(torch.ones(2, requires_grad=True)).sum().backward()

    here = "test_threads_without_frames_post_at_the_line_of_the_backward"
    sites = {call.site for call in recorded(rings)}
    assert len(sites) == 1
    assert (sites.pop() or "").endswith(here)
    assert len(in_python) == (1 if sums and native.core() else 3)


def test_suppressed_calls_and_tensors_without_data_are_left_out(rings: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    listen()
    with scope.suppressed():
        from_cpp()
    with FakeTensorMode():
        from_cpp(torch.ones(6))
    from_cpp(torch.ones(7))
    assert [call.shape for call in recorded(rings)] == [(7,)]


def test_a_mode_that_repeats_each_call_does_not_double_it(rings: Path) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Repeating(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return function(*args, **(kwargs or {}))

    listen()
    with Repeating():
        from_cpp()
        dist.all_reduce(torch.ones(2))
    assert [call.shape for call in recorded(rings)] == [(3,), (2,)]


def test_a_thread_without_python_frames_has_the_line_of_the_backward(rings: Path) -> None:
    listen()

    class Posting(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, values: Any) -> Any:
            return values.clone()

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            assert callsite.locate(None) is not None  # as on a GPU's thread
            return gradient

    Posting.apply(torch.ones(2, requires_grad=True)).sum().backward()
    assert callsite.locate(None) is None


def test_calls_of_a_phase_complete_at_its_end_unless_it_raises(rings: Path) -> None:
    listen()

    @waiting
    def phase(fails: bool) -> None:
        from_cpp()
        if fails:
            raise LookupError

    with pytest.raises(LookupError):
        phase(True)
    phase(False)
    assert [call.state for call in recorded(rings)] == [State.SCHEDULED, State.COMPLETED]
    assert not dispatcher._phases


def test_an_error_in_recording_ends_the_probe_and_not_the_call(
    rings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen()

    def fail(*_args: Any) -> None:
        raise LookupError("by the test")

    monkeypatch.setattr(dispatcher, "record", fail)
    assert torch.equal(from_cpp(), torch.ones(3))
    assert dispatcher._probe is not None
    assert not dispatcher._probe.active
    assert coverage._probes["dispatcher"]["state"] == coverage.ENDED
    from_cpp()


def test_where_kernels_cannot_be_installed_the_use_is_noted(
    rings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.library, "Library", None)
    record_from_now("ddp", "buckets are posted by C++", dist.group.WORLD)
    assert coverage._unseen["ddp"]["comms"]


def test_threads_do_not_hide_each_others_calls(rings: Path) -> None:
    listen()
    scope.announce(None)
    other = threading.Thread(target=from_cpp)
    other.start()
    other.join()
    from_cpp(torch.ones(9))
    scope.conclude()
    assert [call.shape for call in recorded(rings)] == [(3,)]
