"""The CUDA driver functions for counting on the GPU, through ctypes.

They use only the primary context of the program's device, which is also torch's. A thread's
current context is restored.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ncclscope.tracing.device.kernel import NAME, PTX

Launcher = Callable[[int], int]
"""Launch a kernel on a stream, given by its handle; return the driver's result, 0 for success."""

Tail = tuple[int, int]
"""A capture, by the driver's number, and a node in its graph."""

Attacher = Callable[[int, "Tail | None"], "Tail | None"]
"""Add a kernel to the graph that is captured on a stream, given the stream's handle and the node
that was added last. Return the new node, or None if the driver refuses."""

_LIBRARY = "libcuda.so.1"
_PORTABLE_AND_MAPPED = 1 | 2
_RELAXED = 2
"""Capture mode in which a thread may call functions that a capture elsewhere would forbid."""
_CAPTURING = 1


_PRIORITY = 8
"""CU_LAUNCH_ATTRIBUTE_PRIORITY."""

_STREAMS_KEPT = 64


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class _Node(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS, of the version without a context."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
    )


class _Value(ctypes.Structure):
    """CUlaunchAttributeValue, with the one field used here."""

    _fields_ = (("priority", ctypes.c_int), ("rest", ctypes.c_char * 60))


class DriverError(Exception):
    """The driver is not available, or a call failed."""


def _pack(parameters: Sequence[int]) -> tuple[ctypes.Array[Any], ctypes.Array[Any]]:
    """Return a kernel's parameters and an array of pointers to them; keep both alive."""
    values = (ctypes.c_uint64 * len(parameters))(*parameters)
    start = ctypes.addressof(values)
    places = (start + 8 * place for place in range(len(parameters)))
    return values, (ctypes.c_void_p * len(parameters))(*places)


class Driver:
    """The CUDA driver, which the program has already loaded and initialised.

    Raises:
        DriverError: There is no usable driver.
    """

    def __init__(self) -> None:
        try:
            self._cuda = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise DriverError(f"no CUDA driver ({error})") from error
        pointer = ctypes.c_void_p
        if not hasattr(self._cuda, "cuLaunchKernelEx"):
            raise DriverError("the CUDA driver is older than 11.8")
        # With the fixed part packed once, a launch takes four arguments instead of eleven.
        self._launch = self._cuda.cuLaunchKernelEx
        self._launch.argtypes = [pointer, pointer, pointer, pointer]
        self._push = self._cuda.cuCtxPushCurrent_v2
        self._push.argtypes = [pointer]
        self._pop = self._cuda.cuCtxPopCurrent_v2
        self._is_capturing = self._cuda.cuStreamIsCapturing
        self._is_capturing.argtypes = [pointer, pointer]
        self._call("cuInit", ctypes.c_uint(0))

    def context(self, ordinal: int) -> int:
        """Return the primary context of a device, by its number in this process."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        return context.value or 0

    @contextlib.contextmanager
    def within(self, context: int) -> Iterator[None]:
        """Make a context current, without breaking another thread's capture."""
        self._call("cuCtxPushCurrent_v2", ctypes.c_void_p(context))
        try:
            mode = ctypes.c_int(_RELAXED)
            self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
            try:
                yield
            finally:
                self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        finally:
            self._pop(ctypes.byref(ctypes.c_void_p()))

    def register(self, address: int, size: int) -> int:
        """Register host memory for writing by the GPU.

        Args:
            address: Address of the first page.
            size: Size in bytes, a multiple of the page size.

        Returns:
            The memory's address on the GPU.
        """
        where, found = ctypes.c_void_p(address), ctypes.c_uint64()
        flags = ctypes.c_uint(_PORTABLE_AND_MAPPED)
        self._call("cuMemHostRegister_v2", where, ctypes.c_size_t(size), flags)
        self._call("cuMemHostGetDevicePointer_v2", ctypes.byref(found), where, ctypes.c_uint(0))
        return found.value

    def load(self) -> int:
        """Load the kernel into the current context, and return its function."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), PTX)
        self._call("cuModuleGetFunction", ctypes.byref(function), module, NAME)
        return function.value or 0

    def launcher(self, context: int, function: int, *parameters: int) -> Launcher:
        """Return a function that launches the kernel with these parameters.

        Each launch copies the parameters, also into a graph. If the context is not current in the
        calling thread, it is made current for the launch.

        Args:
            context: Context in which the function was loaded.
            function: The kernel.
            *parameters: Its parameters, 64 bits each.
        """
        kept = _, places = _pack(parameters)
        call, push, pop = self._launch, self._push, self._pop
        packed: dict[int, tuple[_Config, tuple[object, ...]]] = {}

        def launch(stream: int, kept: object = kept) -> int:
            found = packed.get(stream)
            if found is None:
                if len(packed) >= _STREAMS_KEPT:
                    packed.clear()
                config = _Config((1, 1, 1), (1, 1, 1), 0, stream, None, 0)
                where = ctypes.addressof(config), function, ctypes.addressof(places), None
                found = packed[stream] = config, where
            result: int = call(*found[1])
            if result and not push(context):
                result = call(*found[1])
                pop(ctypes.byref(ctypes.c_void_p()))
            return result

        return launch

    def attacher(self, context: int, function: int, *parameters: int) -> Attacher:
        """Return a function that adds the kernel to a graph beside the captured kernels.

        The kernel runs after all work of its stream so far and after the kernel attached before
        it. The program's kernels do not wait for it: the dependencies of the stream stay the same.
        Launched on the stream, it would delay the next kernel. A replay ends when all kernels of
        the graph have ended, including this one.

        Args:
            context: Context in which the function was loaded.
            function: The kernel.
            *parameters: Its parameters, 64 bits each.
        """
        kept = _, places = _pack(parameters)
        one = (1, 1, 1)
        node = _Node(function, one, one, 0, ctypes.addressof(places), None)

        def attach(stream: int, tail: Tail | None, kept: object = kept) -> Tail | None:
            added = None
            # An added node counts, even if restoring the context fails.
            with contextlib.suppress(DriverError, AttributeError), self.within(context):
                added = self._attach(stream, tail, node)
            return added

        return attach

    def _attach(self, stream: int, tail: Tail | None, node: _Node) -> Tail:
        status, capture = ctypes.c_int(), ctypes.c_uint64()
        graph, count = ctypes.c_void_p(), ctypes.c_size_t()
        behind, added = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_void_p()
        self._call(
            "cuStreamGetCaptureInfo_v2", ctypes.c_void_p(stream), ctypes.byref(status),
            ctypes.byref(capture), ctypes.byref(graph), ctypes.byref(behind), ctypes.byref(count),
        )  # fmt: skip
        if status.value != _CAPTURING:
            raise DriverError("the stream is not being captured")
        nodes = [behind[place] for place in range(count.value)]
        if tail is not None and tail[0] == capture.value:
            nodes.append(tail[1])
        # High priority, to run before a kernel that is ready at the same time and takes the whole
        # device. If that kernel came first and hung, the call before it would seem to hang.
        value, prefer = _Value(self._priority), self._cuda.cuGraphKernelNodeSetAttribute
        self._call(
            "cuGraphAddKernelNode", ctypes.byref(added), graph,
            (ctypes.c_void_p * len(nodes))(*nodes), ctypes.c_size_t(len(nodes)), ctypes.byref(node),
        )  # fmt: skip
        # The node exists from here on, so nothing below may raise.
        prefer(added, ctypes.c_int(_PRIORITY), ctypes.byref(value))
        return capture.value, added.value or 0

    @functools.cached_property
    def _priority(self) -> int:
        """The highest stream priority of the current context."""
        least, greatest = ctypes.c_int(), ctypes.c_int()
        self._call("cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
        return greatest.value

    def is_capturing(self, stream: int) -> bool:
        """Return whether a stream is being captured into a graph."""
        status = ctypes.c_int()
        result = self._is_capturing(stream, ctypes.addressof(status))
        return not result and status.value == _CAPTURING

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._cuda, name)(*arguments)
        if result:
            error = ctypes.c_char_p()
            self._cuda.cuGetErrorName(result, ctypes.byref(error))
            raise DriverError(f"{name}: {(error.value or b'error').decode()} ({result})")
