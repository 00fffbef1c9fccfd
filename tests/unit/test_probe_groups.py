"""Groups that methods of the program open and end, in C as in Python."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ncclscope.tracing import scope
from ncclscope.tracing.tracer import Tracer
from ncclscope_patches.probes.recording import Handle
from ncclscope_patches.vllm.pynccl import PyNcclProbe, handles
from tests.support.rings import choose_core, read, tracer_in


class Tensor:
    shape = (4,)
    dtype = "float32"


class Library:
    """In place of vLLM's ``PyNcclCommunicator``."""

    disabled = False

    def all_gather(self, output_tensor: Tensor, input_tensor: Tensor, stream: Any = None) -> None:
        """Enqueue nothing."""

    def group_start(self, fails: bool = False) -> str:
        if fails:
            raise ValueError("no start")
        return "started"

    def group_end(self, fails: bool = False) -> str:
        if fails:
            raise ValueError("no end")
        return "ended"


class Probe(PyNcclProbe):
    target = "tests_of_groups"


Job = tuple[Any, Probe, Tracer]


@pytest.fixture(params=["C", "Python"])
def job(
    request: pytest.FixtureRequest, rings: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Job]:
    choose_core(request.param, monkeypatch)
    tracer = tracer_in(rings)
    comm = tracer.communicator("key", "tp:0", [0], "nccl")
    module: Any = ModuleType(Probe.target)
    module.PyNcclCommunicator = type("PyNcclCommunicator", (Library,), dict(vars(Library)))
    module.NCCLLibrary = type("NCCLLibrary", (), {})
    probe = Probe()
    probe.active = True
    probe.install(module)
    library = module.PyNcclCommunicator()
    handles.remember(library, Handle(tracer, comm))
    yield library, probe, tracer
    probe.revert()
    scope.groups.clear()


def gather(library: Any, times: int = 1) -> None:
    for _ in range(times):
        library.all_gather(Tensor(), Tensor())


def groups(tracer: Tracer) -> list[int | None]:
    """Return the group of each recorded call, as numbers from 1."""
    tracer.ring.store_heartbeat()
    (log,) = read(tracer.path).logs.values()
    found = [call.group for call in log.span(1, log.calls + 1)]
    numbers = [one for one in dict.fromkeys(found) if one is not None]
    return [None if one is None else numbers.index(one) + 1 for one in found]


def test_calls_of_a_group_share_its_number(job: Job) -> None:
    library, _, tracer = job
    for _ in range(3):  # the first call of a place is recorded by Python in both
        gather(library)
        assert library.group_start() == "started"
        gather(library, 2)
        library.group_start()
        gather(library)
        assert library.group_end() == "ended"
        gather(library)
        assert library.group_end() == "ended"
    assert groups(tracer) == [None, 1, 1, 1, 1, None, 2, 2, 2, 2, None, 3, 3, 3, 3]
    assert not scope.groups


def test_a_group_is_of_one_thread(job: Job) -> None:
    library, _, tracer = job
    gather(library)
    library.group_start()
    other = threading.Thread(target=gather, args=(library, 2))
    other.start()
    other.join()
    gather(library)
    library.group_end()
    assert groups(tracer) == [None, None, None, 1]


def test_a_start_that_fails_opens_no_group_and_an_end_that_fails_ends_it(job: Job) -> None:
    library, probe, tracer = job
    with pytest.raises(ValueError, match="no start"):
        library.group_start(fails=True)
    gather(library)
    library.group_start()
    with pytest.raises(ValueError, match="no end"):
        library.group_end(True)
    gather(library)
    assert probe.active
    assert groups(tracer) == [None, None]


def test_a_probe_that_is_off_opens_no_group(job: Job) -> None:
    library, probe, _ = job
    probe.active = False
    assert library.group_start() == "started"
    assert not scope.groups
    assert library.group_end() == "ended"


def test_damaged_state_ends_the_probe_and_not_the_program(job: Job) -> None:
    library, probe, _ = job
    scope.groups[threading.get_ident()] = ["many", 1]  # type: ignore[list-item]
    assert library.group_start() == "started"
    assert not probe.active
    assert library.group_end() == "ended"
