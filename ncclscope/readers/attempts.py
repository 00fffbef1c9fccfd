"""Leave out the processes of earlier attempts: torchrun starts all ranks again when one fails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ncclscope.untrusted import integer

_NONE = -1


class Attempts:
    """The newest attempt of each launcher.

    Args:
        abouts: What each process says of itself in its ring.
    """

    def __init__(self, abouts: Iterable[Mapping[str, Any]]) -> None:
        self._newest: dict[tuple[str, str], int] = {}
        for about in abouts:
            launcher = _launcher(about)
            self._newest[launcher] = max(self._newest.get(launcher, _NONE), _number(about))

    def is_newest(self, about: Mapping[str, Any]) -> bool:
        """Return whether a process is of its launcher's newest attempt, or of none."""
        return _number(about) in (_NONE, self._newest.get(_launcher(about), _NONE))


def _launcher(about: Mapping[str, Any]) -> tuple[str, str]:
    return str(about.get("host")), str(about.get("parent"))


def _number(about: Mapping[str, Any]) -> int:
    number = integer(about.get("attempt"))
    return _NONE if number is None else number
