"""What torchrun's process notes when it ends the ranks of a job."""

from __future__ import annotations

from pathlib import Path
from signal import SIGKILL, SIGTERM
from types import SimpleNamespace
from typing import Any

import pytest

from ncclscope.readers.ring.ranks import read_ring
from ncclscope_patches.startup.launchers import TorchrunNote


class Context:
    """As torch's: processes, how those ended that it has seen, and its way to end the others."""

    def __init__(self, ended: dict[int, int], later: dict[int, int]) -> None:
        self._failures = {
            place: SimpleNamespace(pid=pid, exitcode=status)
            for place, (pid, status) in enumerate(ended.items())
        }
        self.subprocess_handlers = {
            place: SimpleNamespace(proc=SimpleNamespace(pid=pid, returncode=ended.get(pid)))
            for place, pid in enumerate({**ended, **later})
        }
        self._later = later

    def _close(self, death_sig: int, timeout: int = 30) -> None:
        for handler in self.subprocess_handlers.values():
            if handler.proc.returncode is None:
                handler.proc.returncode = self._later[handler.proc.pid]
        for place, (pid, status) in enumerate(self._later.items()):
            self._failures[100 + place] = SimpleNamespace(pid=pid, exitcode=status)


@pytest.mark.parametrize(
    ("ended", "later", "noted"),
    [
        ({11: -SIGKILL}, {12: -SIGTERM, 13: -SIGTERM}, {"11": -9}),
        ({11: 3}, {12: -SIGTERM, 13: 3}, {"11": 3}),
        # Somebody has killed all of them, one after the other.
        ({11: -SIGKILL}, {12: -SIGKILL, 13: -SIGKILL}, {"11": -9, "12": -9, "13": -9}),
        ({11: -SIGTERM}, {12: -SIGTERM}, None),
        ({}, {12: -SIGTERM}, None),
    ],
)
def test_the_ranks_that_ended_by_themselves_are_noted_once(
    rings: Path,
    monkeypatch: pytest.MonkeyPatch,
    ended: dict[int, int],
    later: dict[int, int],
    noted: dict[str, int] | None,
) -> None:
    monkeypatch.setenv("NCCLSCOPE_DIR", str(rings))
    patch = TorchrunNote()
    patch.active = True
    module: Any = SimpleNamespace(SubprocessContext=Context)
    patch.install(module)
    try:
        context = Context(ended, later)
        for _ in range(2):
            context._close(SIGTERM)
    finally:
        patch.revert()

    found = [read_ring(path).details["ends"] for path in rings.glob("*.ring")]
    assert found == ([] if noted is None else [noted])
