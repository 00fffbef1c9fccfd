"""`watch` of two directories: a transfer that stalls is an alarm, one that ends is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclscope.model import Transfer
from ncclscope.ring.transfers import TransferTable
from ncclscope.watch.watch import Watcher
from tests.support.rings import tracer_in


class Engine:
    """An engine whose only process is this one."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.name = name
        self.tracer = tracer_in(directory, details={"run": name})
        self.table = TransferTable(Path(self.tracer.path), self.tracer.ring.geometry)

    def put(self, direction: str, request: str, **more: str) -> None:
        """Record an end of transfer ``p1``."""
        self.table.put(
            Transfer(id="p1", engine=self.name, direction=direction, request=request, **more)
        )


@pytest.fixture
def engines(tmp_path: Path) -> tuple[Engine, Engine]:
    return Engine(tmp_path / "p", "prefill-0"), Engine(tmp_path / "d", "decode-0")


def test_a_transfer_that_stalls_is_reported_once(engines: tuple[Engine, Engine]) -> None:
    prefill, decode = engines
    now = [100.0]
    watcher = Watcher(prefill.directory, decode.directory, stall=10.0, clock=lambda: now[0])
    prefill.put("send", "p1", phase="held")
    decode.put("recv", "d1", peer="prefill-0", state="started", phase="read")
    assert watcher.poll().status != "hung"

    now[0] += 12.0
    found = watcher.poll()
    assert (found.status, found.news) == ("hung", True)
    assert found.verdict is not None
    assert found.verdict.cause is not None
    assert found.verdict.cause.kind == "transfer_stalled"
    now[0] += 2.0
    assert not watcher.poll().news


def test_transfers_that_end_raise_no_alarm(engines: tuple[Engine, Engine]) -> None:
    prefill, decode = engines
    now = [100.0]
    watcher = Watcher(prefill.directory, decode.directory, stall=10.0, clock=lambda: now[0])
    for _ in range(5):
        prefill.put("send", "p1", phase="held")
        decode.put("recv", "d1", peer="prefill-0", state="started", phase="read")
        watcher.poll()
        decode.table.change("recv", "d1", state="completed")
        prefill.table.change("send", "p1", state="completed")
        now[0] += 12.0
        assert not watcher.poll().in_trouble
