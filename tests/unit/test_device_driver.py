"""What is asked of the CUDA driver to run a marker, of a driver that is played."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from ncclscope.device.driver import Driver, DriverError, _Attribute, _Config
from ncclscope.device.kernel import NAME, NAME_WAITING, PTX, PTX_SINCE_HOPPER

STREAM, CAPTURING = 7, 1


class Library:
    """The functions of libcuda.so that adding a node takes.

    Attributes:
        captures: The number of the capture that the stream is in; 0 for none.
        behind: Nodes that what comes next on the stream would wait for.
        added: What each node that was added waits for.
        preferred: Nodes that were given a priority, and which.
        launched: Streams that a kernel was launched on.
        early: Those on which it may begin before what it was launched behind has ended.
        kinds: What nodes are, where they are no kernels.
        refuses: Names of functions that fail.
        unknown: What the driver cannot assemble for its GPU.
    """

    def __init__(self) -> None:
        self.captures = 1
        self.behind = [100]
        self.added: list[list[int]] = []
        self.preferred: list[tuple[int, int]] = []
        self.launched: list[int] = []
        self.early: list[int] = []
        self.kinds: dict[int, int] = {}
        self.refuses: set[str] = set()
        self.unknown: set[bytes] = set()

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu") and name in self.refuses:
            return lambda *given: 801
        return super().__getattribute__(name)

    def cuLaunchKernelEx(self, config: int, function: int, parameters: int, extra: None) -> int:
        given = _Config.from_address(config)
        assert (tuple(given.grid), tuple(given.block)) == ((1, 1, 1), (1, 1, 1))
        assert _values(parameters) == [11, 22, 33]
        if function == 45:
            assert given.attribute_count == 1
            attribute = _Attribute.from_address(given.attributes)
            assert (attribute.id, attribute.value.number) == (6, 1)
            self.early.append(given.stream)
            return 0
        assert (function, given.attribute_count) == (44, 0)
        self.launched.append(given.stream)
        return 0

    def cuGraphNodeGetType(self, node: Any, kind: Any) -> int:
        kind._obj.value = self.kinds.get(node.value, 0)
        return 0

    def cuGraphAddDependencies_v2(self) -> int:
        raise AssertionError("it is only looked for")

    def cuModuleLoadData(self, module: Any, data: bytes) -> int:
        self.loaded = data
        module._obj.value = 66
        return 218 if data in self.unknown else 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        assert module.value == 66
        assert b" %s(" % name in self.loaded
        function._obj.value = {NAME: 44, NAME_WAITING: 45}[name]
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        return 0

    def cuGetErrorName(self, result: int, said: Any) -> int:
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
        self.kept = (ctypes.c_void_p * (len(self.behind) or 1))(*self.behind)
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
        self.preferred.append((node.value, value._obj.number))
        return 0


def _values(parameters: int) -> list[int]:
    """What a kernel is given, by the address of where that stands."""
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


def test_both_kernels_are_loaded(driver: Driver) -> None:
    assert driver.load() == (44, 45)


@pytest.mark.parametrize("lacks", ["a GPU since Hopper", "graphs that know of it"])
def test_the_kernel_is_loaded_where_there_is_no_other(
    driver: Driver, library: Library, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    if lacks == "a GPU since Hopper":
        library.unknown.add(PTX_SINCE_HOPPER)
    else:
        monkeypatch.delattr(Library, "cuGraphAddDependencies_v2")
    assert driver.load() == (44, 0)
    library.unknown.add(PTX)
    with pytest.raises(DriverError, match="cuModuleLoadData"):
        driver.load()


def test_behind_one_kernel_a_kernel_is_launched_early(driver: Driver, library: Library) -> None:
    launch = driver.early_launcher(3, 44, 45, 11, 22, 33)
    assert [launch(STREAM), launch(STREAM)] == [0, 0]
    assert (library.early, library.launched) == ([STREAM, STREAM], [])


@pytest.mark.parametrize(
    "behind", ["two nodes", "none", "no kernel", "no graph", "what cannot be known"]
)
def test_behind_anything_else_it_is_launched_when_that_has_ended(
    driver: Driver, library: Library, behind: str
) -> None:
    match behind:
        case "two nodes":
            library.behind = [100, 101]
        case "none":
            library.behind = []
        case "no kernel":
            library.kinds[100] = 7
        case "no graph":
            library.captures = 0
        case _:
            library.refuses.add("cuGraphNodeGetType")
    assert driver.early_launcher(3, 44, 45, 11, 22, 33)(STREAM) == 0
    assert (library.early, library.launched) == ([], [STREAM])
