"""Fault: the network of one rank delivers no packets."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from ncclscope.errors import LaboratoryError
from ncclscope.lab.faults.base import Fault, describe, hidden_reduction

if TYPE_CHECKING:
    import torch

    from ncclscope.lab.engine import Engine
    from ncclscope.lab.sizes import Sizes

_SO_ATTACH_FILTER = 26
_RETURN_CONSTANT = 0x06
"""BPF instruction: accept a constant number of bytes of the packet."""


class SilentLink(Fault):
    """No packet reaches the rank: all are in the same call, and it does not complete.

    A filter on the rank's sockets makes the kernel drop all packets that arrive. The connections
    stay open. All processes live, each has posted the same all_reduce, and none completes it. No
    rank diverges.
    """

    name: ClassVar[str] = "silent_link"
    kind: ClassVar[str | None] = "stalled"
    least_tp: ClassVar[int] = 2

    def check(self, program: Sizes) -> None:
        super().check(program)
        if program.backend != "gloo":
            raise LaboratoryError(
                f"{self.name} cannot happen with the backend {program.backend}",
                "give the backend gloo, whose connections are sockets",
            )

    def planted(self, program: Sizes) -> dict[str, Any]:
        return describe(
            self,
            program,
            "tp",
            "receives no more packets; its replica waits in the all_reduce of layer "
            f"{program.fault_layer}, which all have posted",
            odd=None,
            peers=hidden_reduction(program),
            diverging=False,
        )

    def reduce_attention(self, engine: Engine, hidden: torch.Tensor, layer: int) -> None:
        if layer == engine.program.fault_layer:
            # Complete all earlier calls, so that this call is always the one that hangs.
            engine.stream.synchronize()
            for connection in _connections():
                _drop_all(connection)
        engine.reduce_attention(hidden)


def _connections() -> Iterator[socket.socket]:
    """Yield a duplicate of each TCP connection of this process."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            copy = os.dup(int(name))
        except OSError:  # closed meanwhile
            continue
        with socket.socket(fileno=copy) as found:
            if found.family in (socket.AF_INET, socket.AF_INET6) and _is_connected(found):
                yield found


def _is_connected(found: socket.socket) -> bool:
    try:
        found.getpeername()
    except OSError:
        return False
    return True


def _drop_all(connection: socket.socket) -> None:
    """Make the kernel drop all packets that arrive on a connection, without an answer."""
    program = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN_CONSTANT, 0, 0, 0))
    filters = struct.pack("HP", 1, ctypes.addressof(program))
    connection.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filters)
