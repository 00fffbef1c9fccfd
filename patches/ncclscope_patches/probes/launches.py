"""Note how a library launches its kernels: a cooperative launch starts only with all its SMs.

Where another library's kernel holds some of them and waits for a peer, and that peer has posted
both in the opposite order, neither kernel comes to its end.
"""

from __future__ import annotations

import sys
from typing import Any

from ncclscope.tracing import session

_launches: dict[str, dict[str, int]] = {}


def note_cooperative(library: str, sms: int = 0) -> None:
    """Note in the ring that a library launches cooperatively.

    Args:
        library: Its name in records.
        sms: SMs of one kernel; 0 if its calls choose the number.
    """
    about = {"sms": sms, "of": _sms_of_device()}
    if _launches.get(library) != about:
        _launches[library] = about
        session.describe(launches=dict(_launches))


def _sms_of_device() -> int:
    """Return the SMs of the current device; 0 without one."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return 0
    return int(cuda.get_device_properties(cuda.current_device()).multi_processor_count)


def _forget() -> None:
    """Forget the parent's libraries, in the child after a fork."""
    if _launches:
        _launches.clear()
        session.describe(launches={})


session.on_reset(_forget)
