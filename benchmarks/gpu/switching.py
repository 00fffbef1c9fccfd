"""Switch NCCL's profiler plugin off and on within a process: see ``switched_plugin.c``."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ncclscope import native
from ncclscope.native.profiler import SLOT

if TYPE_CHECKING:
    from ncclscope_patches.probes.probe import Patch

__all__ = ["PluginSwitch", "build"]

_SOURCE = Path(__file__).with_name("switched_plugin.c")
_HEADERS = Path(native.__file__).parent / "src"
_BUILT = "SWITCHED_PLUGIN_BUILT"


def build(directory: Path) -> None:
    """Compile the plugin with a switch, for all processes that this one starts.

    Raises:
        subprocess.CalledProcessError: The compiler failed.
    """
    # By this name it counts as the plugin to which it forwards.
    path = directory / "ncclscope-profiler.so"
    command = ["gcc", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{_HEADERS}"]
    subprocess.run([*command, str(_SOURCE), "-o", str(path), "-ldl"], check=True)
    os.environ[_BUILT] = str(path)


class PluginSwitch:
    """The switch of this process's plugin. Make it before NCCL makes a communicator."""

    def __init__(self) -> None:
        path, own = os.environ.get(_BUILT), native.plugin_path()
        self.library: ctypes.CDLL | None = None
        if path is not None and own is not None:
            os.environ |= {SLOT: path, "SWITCHED_PLUGIN": str(own)}
            self.library = ctypes.CDLL(path)

    def use(self, patches: Iterable[Patch], *, probes: bool, plugin: bool) -> None:
        """Let probes and plugin record from here on, or not.

        Raises:
            RuntimeError: NCCL has not loaded the plugin.
        """
        for patch in patches:
            patch.active = probes
        if self.set(plugin) == 0 and self.library is not None:
            raise RuntimeError("NCCL has not loaded the plugin that can be switched")

    def set(self, on: bool) -> int:
        """Let NCCL report calls or not; return the number of its masks that were set."""
        return 0 if self.library is None else int(self.library.switched_set(int(on)))
