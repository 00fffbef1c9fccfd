"""Methods that are noted while they run, and what must not come of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ncclscope.errors import DivergenceError
from ncclscope.model import Activity
from ncclscope.readers import open_run
from ncclscope.tracing import session
from ncclscope_patches.probes.noting import put_noting
from ncclscope_patches.probes.probe import Patch
from ncclscope_patches.vllm import service
from ncclscope_patches.vllm.queues import VllmQueues
from ncclscope_patches.vllm.service import VllmCoordinator, VllmEventLoop, VllmRequests
from ncclscope_patches.vllm.steps import VllmSteps


class Program:
    """What is noted."""

    def __init__(self) -> None:
        self.seen: list[Activity | None] = []

    def work(self, *given: Any, **named: Any) -> Any:
        """Read its own note, then raise what it is given, or return it."""
        self.seen.append(newest())
        if given and isinstance(given[0], BaseException):
            raise given[0]
        return given, named


def newest(name: str = "thing") -> Activity | None:
    """Return the activity in the ring of this process."""
    tracer = session.opened()
    return None if tracer is None else open_run(tracer.path).ranks[0].activities.get(name)


@pytest.fixture
def patch(rings: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Patch]:
    monkeypatch.setenv("NCCLSCOPE_DIR", str(rings))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    session._reset()
    made = Patch()
    made.active = True
    yield made
    made.revert()
    session._reset()


def program(patch: Patch, read: Any) -> Program:
    cls: Any = type("Traced", (Program,), {"work": Program.work})
    assert put_noting(patch, cls, "work", "thing", read)
    assert not put_noting(patch, cls, "work", "thing", read), "once"
    assert not put_noting(patch, cls, "play", "thing", read), "there is no such method"
    made: Program = cls()
    return made


def test_it_is_noted_while_it_runs_and_when_it_has_ended(patch: Patch) -> None:
    traced = program(patch, lambda args, kwargs: (kwargs["detail"], len(args)))

    for count in (1, 2):
        assert traced.work("x", detail="load") == (("x",), {"detail": "load"})
        (within,) = traced.seen[-1:]
        after = newest()
        assert within is not None
        assert after is not None
        assert (within.detail, within.number, within.count) == ("load", 2, count)
        assert within.until_ns is None
        assert after.until_ns is not None
        assert within.since_ns <= after.until_ns


def test_its_exception_is_handed_on_and_its_end_noted(patch: Patch) -> None:
    traced = program(patch, lambda args, kwargs: (None, 0))
    with pytest.raises(KeyError, match="mine"):
        traced.work(KeyError("mine"))

    after = newest()
    assert after is not None
    assert after.until_ns is not None


def test_what_is_not_to_be_noted_makes_no_ring(patch: Patch, rings: Path) -> None:
    traced = program(patch, lambda args, kwargs: None)
    assert traced.work(1) == ((1,), {})
    assert os.listdir(rings) == []


def test_what_goes_wrong_in_the_probe_ends_it_and_not_the_call(patch: Patch) -> None:
    traced = program(patch, lambda args, kwargs: (["no", "text"], 0))
    assert traced.work(1) == ((1,), {})
    assert len(traced.seen) == 1
    assert not patch.active


def test_what_the_guard_raises_is_for_the_program(patch: Patch) -> None:
    def part(args: Any, kwargs: Any) -> None:
        raise DivergenceError("diverged")

    traced = program(patch, part)
    with pytest.raises(DivergenceError):
        traced.work(1)
    assert traced.seen == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_notes_in_a_ring_of_its_own(patch: Patch, rings: Path) -> None:
    traced = program(patch, lambda args, kwargs: ("parent", 0))
    traced.work(1)
    tracer = session.opened()
    assert tracer is not None
    child = os.fork()
    if not child:
        try:
            traced.work(2)
            own = session.opened()
            found = newest()
            good = own is not None and own.path != tracer.path and found is not None
            os._exit(0 if good and found is not None and found.count == 1 else 1)
        finally:
            os._exit(2)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    after = newest()
    assert after is not None
    assert after.count == 1


def test_vllms_queues_and_steps(patch: Patch) -> None:
    def nothing(self: Any, *args: Any, **kwargs: Any) -> None:
        return None

    module: Any = ModuleType("stand_in")
    module.MessageQueue = type("MessageQueue", (), {"enqueue": nothing, "dequeue": nothing})
    names = ("execute_model", "sample_tokens", "execute_dummy_batch")
    module.Worker = type("Worker", (), dict.fromkeys(names, nothing))
    for probe in (VllmQueues(), VllmSteps()):
        probe.active = True
        probe.install(module)
    queue, worker = module.MessageQueue(), module.Worker()

    notes = []
    queue.enqueue(("execute_model", (), {}, None))
    notes.append(newest("enqueue"))
    queue.enqueue(("not a name", (), {}, None))
    notes.append(newest("enqueue"))
    queue.dequeue(indefinite=True)
    notes.append(newest("dequeue"))
    worker.execute_model(SimpleNamespace(total_num_scheduled_tokens=0))
    assert newest("step") is None, "without tokens there is no pass"
    worker.execute_model(scheduler_output=SimpleNamespace(total_num_scheduled_tokens=17))
    notes.append(newest("step"))
    worker.execute_dummy_batch()
    notes.append(newest("step"))
    worker.sample_tokens(None)
    notes.append(newest("step"))

    assert [(one.detail, one.number) for one in notes if one is not None] == [
        *(("execute_model", 0), (None, 0), ("work", 0)),
        *(("execute_model", 1), ("execute_dummy_batch", 2), ("sample_tokens", 2)),
    ]


def test_only_an_answer_moves_the_time_of_open_requests(patch: Patch) -> None:
    """Clients that give up and come again are no progress."""

    def change(self: Any, count: int, more: int = 0) -> None:
        self.request_states = dict.fromkeys(range(more or count))

    module: Any = ModuleType("stand_in")
    names = ("add_request", "process_outputs", "abort_requests")
    module.OutputProcessor = type("OutputProcessor", (), dict.fromkeys(names, change))
    probe = VllmRequests()
    probe.active = True
    probe.install(module)
    processor, notes = module.OutputProcessor(), []

    processor.add_request(1)
    notes.append(newest("requests"))
    processor.add_request(2)
    notes.append(newest("requests"))
    processor.abort_requests(1)
    notes.append(newest("requests"))
    processor.process_outputs([], 1)  # statistics alone
    notes.append(newest("requests"))
    processor.process_outputs([object()], 1)
    notes.append(newest("requests"))
    processor.abort_requests(0)
    last = newest("requests")

    assert last is not None
    assert last.until_ns is not None
    known = [one for one in notes if one is not None]
    assert [one.number for one in known] == [1, 2, 1, 1, 1]
    since = [one.since_ns for one in known]
    assert since[:4] == [since[0]] * 4
    assert since[4] > since[0]


def test_a_server_notes_when_its_event_loop_ran(
    patch: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_TICK_SECONDS", 0.0)
    module: Any = ModuleType("stand_in")

    async def serve_http(turns: int) -> list[int]:
        """Let the loop run some turns, and then block it."""
        seen = []
        for _ in range(turns):
            await asyncio.sleep(0)
            found = newest("loop")
            assert found is not None
            seen.append(found.since_ns)
        last = newest("loop")
        assert last is not None
        assert last.until_ns is None
        assert newest("loop") == last  # nobody turns it
        return seen

    module.serve_http = serve_http
    probe = VllmEventLoop()
    probe.active = True
    probe.install(module)

    async def program() -> list[int]:
        return list(await module.serve_http(4))

    seen = asyncio.run(program())
    assert seen == sorted(seen)
    assert len({*seen}) == 4
    assert role() == "frontend"


def test_a_coordinator_has_a_ring(patch: Patch) -> None:
    module: Any = ModuleType("stand_in")
    module.DPCoordinatorProc = type(
        "DPCoordinatorProc", (), {"process_input_socket": lambda self, *addresses: addresses}
    )
    probe = VllmCoordinator()
    probe.active = True
    probe.install(module)

    assert module.DPCoordinatorProc().process_input_socket("a", "b") == ("a", "b")
    assert role() == "coordinator"


def role() -> object:
    """Return the role in the ring of this process."""
    tracer = session.opened()
    assert tracer is not None
    return open_run(tracer.path).ranks[0].details.get("role")
