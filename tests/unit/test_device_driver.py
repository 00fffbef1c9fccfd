"""Calls to the CUDA driver that run a marker, on a fake driver."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from ncclscope.tracing.device.driver import Driver, _Config

STREAM, CAPTURING = 7, 1


class Library:
    """The functions of libcuda.so that adding a node takes.

    Attributes:
        captures: The number of the capture that the stream is in; 0 for none.
        behind: Nodes that what comes next on the stream would wait for.
        added: What each node that was added waits for.
        preferred: Nodes that were given a priority, and which.
        launched: Streams that a kernel was launched on.
        refuses: Names of functions that fail.
    """

    def __init__(self) -> None:
        self.captures = 1
        self.behind = [100]
        self.added: list[list[int]] = []
        self.preferred: list[tuple[int, int]] = []
        self.launched: list[int] = []
        self.refuses: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu") and name in self.refuses:
            return lambda *given: 801
        return super().__getattribute__(name)

    def cuLaunchKernelEx(self, config: int, function: int, parameters: int, extra: None) -> int:
        given = _Config.from_address(config)
        assert (tuple(given.grid), tuple(given.block), function) == ((1, 1, 1), (1, 1, 1), 44)
        assert (given.attribute_count, _values(parameters)) == (0, [11, 22, 33])
        self.launched.append(given.stream)
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        return 0

    def cuGetErrorName(self, result: int, output: Any) -> int:
        return 0

    def cuCtxGetStreamPriorityRange(self, least: Any, greatest: Any) -> int:
        greatest._obj.value = -5
        return 0

    def cuStreamGetCaptureInfo_v2(
        self, stream: Any, status: Any, number: Any, graph: Any, behind: Any, count: Any
    ) -> int:
        assert stream.value == STREAM
        status._obj.value = CAPTURING if self.captures else 0
        number._obj.value = self.captures
        graph._obj.value = 55
        self.kept = (ctypes.c_void_p * len(self.behind))(*self.behind)
        behind._obj.contents = ctypes.c_void_p.from_buffer(self.kept)
        count._obj.value = len(self.behind)
        return 0

    def cuGraphAddKernelNode(
        self, added: Any, graph: Any, behind: Any, count: Any, node: Any
    ) -> int:
        assert (graph.value, node._obj.function) == (55, 44)
        assert _values(node._obj.parameters) == [11, 22, 33]
        self.added.append(list(behind)[: count.value])
        added._obj.value = 1000 + len(self.added)
        return 0

    def cuGraphKernelNodeSetAttribute(self, node: Any, name: Any, value: Any) -> int:
        assert name.value == 8
        self.preferred.append((node.value, value._obj.priority))
        return 0


def _values(parameters: int) -> list[int]:
    """Return the arguments of a kernel, by their address."""
    places = (ctypes.c_void_p * 3).from_address(parameters)
    return [ctypes.c_uint64.from_address(place or 0).value for place in places]


@pytest.fixture
def library() -> Library:
    return Library()


@pytest.fixture
def driver(library: Library) -> Driver:
    made = Driver.__new__(Driver)
    made._cuda = library  # type: ignore[assignment]
    made._launch = library.cuLaunchKernelEx
    made._push = library.cuCtxPushCurrent_v2
    made._pop = lambda context: 0
    return made


def test_a_kernel_is_launched_with_its_parameters(driver: Driver, library: Library) -> None:
    launch = driver.launcher(3, 44, 11, 22, 33)
    assert [launch(stream) for stream in (7, 8, 7)] == [0, 0, 0]
    assert library.launched == [7, 8, 7]


def test_a_node_waits_for_its_stream_and_for_the_node_before_it(
    driver: Driver, library: Library
) -> None:
    attach = driver.attacher(3, 44, 11, 22, 33)
    tail = attach(STREAM, None)
    library.behind = [101, 102]
    assert attach(STREAM, tail) == (1, 1002)
    assert library.added == [[100], [101, 102, 1001]]
    assert library.preferred == [(1001, -5), (1002, -5)]


def test_a_node_does_not_wait_for_one_of_another_graph(driver: Driver, library: Library) -> None:
    attach = driver.attacher(3, 44, 11, 22, 33)
    tail = attach(STREAM, None)
    library.captures = 2
    assert attach(STREAM, tail) == (2, 1002)
    assert library.added[1] == [100]


@pytest.mark.parametrize(
    "name",
    ["cuStreamGetCaptureInfo_v2", "cuCtxGetStreamPriorityRange", "cuGraphAddKernelNode"],
)
def test_a_driver_that_refuses_leaves_the_graph_as_it_is(
    driver: Driver, library: Library, name: str
) -> None:
    library.refuses.add(name)
    assert driver.attacher(3, 44, 11, 22, 33)(STREAM, None) is None
    assert library.added == []


def test_a_driver_that_lacks_a_function_leaves_the_graph_as_it_is(
    driver: Driver, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Library, "cuGraphKernelNodeSetAttribute")
    assert driver.attacher(3, 44, 11, 22, 33)(STREAM, None) is None
    assert library.added == []


def test_nothing_is_added_outside_of_a_capture(driver: Driver, library: Library) -> None:
    library.captures = 0
    assert driver.attacher(3, 44, 11, 22, 33)(STREAM, None) is None
    assert library.added == []


def test_a_node_without_a_priority_counts_all_the_same(driver: Driver, library: Library) -> None:
    library.refuses.add("cuGraphKernelNodeSetAttribute")
    assert driver.attacher(3, 44, 11, 22, 33)(STREAM, None) == (1, 1001)


def test_a_node_that_was_added_counts_whatever_comes_behind_it(
    driver: Driver, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([0, 801])  # relaxed, and not back again
    monkeypatch.setattr(
        Library, "cuThreadExchangeStreamCaptureMode", lambda self, mode: next(answers)
    )
    assert driver.attacher(3, 44, 11, 22, 33)(STREAM, None) == (1, 1001)
