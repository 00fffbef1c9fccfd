"""The kernel is assembled for each architecture by what comes with torch, without a GPU."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from pathlib import Path

import pytest

from ncclscope.ring import layout
from ncclscope.tracing.device.driver import _Config, _Node, _Value
from ncclscope.tracing.device.kernel import COUNT_BYTES, NAME, PTX

_PTX_INPUT = 2


def _linker() -> ctypes.CDLL:
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*/lib/libnvJitLink.so*")):
            return ctypes.CDLL(str(path))
    pytest.skip("nvidia-nvjitlink is not installed")


def _call(linker: ctypes.CDLL, name: str, *arguments: object) -> int:
    major = re.search(r"\.so\.(\d+)", linker._name)
    names = [name, *(f"__{name}_{major and major[1]}_{minor}" for minor in range(10))]
    function = next(getattr(linker, each) for each in names if hasattr(linker, each))
    result: int = function(*arguments)
    return result


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_the_kernel_is_assembled(architecture: str) -> None:
    linker = _linker()
    handle = ctypes.c_void_p()
    options = (ctypes.c_char_p * 1)(f"-arch={architecture}".encode())
    assert _call(linker, "nvJitLinkCreate", ctypes.byref(handle), 1, options) == 0
    size = ctypes.c_size_t()
    assert _call(linker, "nvJitLinkAddData", handle, _PTX_INPUT, PTX, len(PTX), b"mark") == 0
    done = _call(linker, "nvJitLinkComplete", handle)
    _call(linker, "nvJitLinkGetErrorLogSize", handle, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value + 1)
    _call(linker, "nvJitLinkGetErrorLog", handle, log)
    assert (done, log.value) == (0, b"")
    assert _call(linker, "nvJitLinkGetLinkedCubinSize", handle, ctypes.byref(size)) == 0
    cubin = ctypes.create_string_buffer(size.value)
    assert _call(linker, "nvJitLinkGetLinkedCubin", handle, cubin) == 0
    assert cubin.raw.startswith(b"\x7fELF")
    assert NAME in cubin.raw


def test_there_are_counts_for_all_communicators_of_a_ring() -> None:
    assert COUNT_BYTES == layout.DEVICE_COMMS * 16
    assert f"counts[{COUNT_BYTES}]".encode() in PTX
    assert PTX.endswith(b"\0")  # the driver takes it as a C string


def test_a_launch_is_packed_as_the_driver_has_it() -> None:
    # cuda.h: three and three and one unsigned, a pointer, a pointer, an unsigned.
    assert ctypes.sizeof(_Config) == 56
    assert (_Config.stream.offset, _Config.attributes.offset) == (32, 40)


def test_a_node_is_packed_as_the_driver_has_it() -> None:
    # cuda.h: a pointer, three and three and one unsigned, two pointers.
    assert ctypes.sizeof(_Node) == 56
    assert (_Node.parameters.offset, _Node.extra.offset) == (40, 48)
    assert ctypes.sizeof(_Value) == 64
