"""Leases that end, on workers of NIXL's connector as vLLM's releases have them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ncclscope.model import Transfer
from ncclscope.tracing import session, transfers
from ncclscope_patches.vllm.nixl import NixlTransfers
from tests.support.rings import read


class Worker:
    """What both releases have; vLLM's own class needs NIXL, and an agent of it."""

    def __init__(self) -> None:
        self._reqs_to_send = {"over": time.perf_counter() - 1, "held": time.perf_counter() + 60}

    def release(self) -> set[str]:
        now = time.perf_counter()
        over = {request for request, ends in self._reqs_to_send.items() if now >= ends}
        for request in over:
            del self._reqs_to_send[request]
        return over


class Worker26(Worker):
    """vLLM 0.26: leases are looked through in the function that reports what has ended."""

    def get_finished(self) -> set[str]:
        self._sync_device_after_mamba_recv(set(), set())
        return self.release()

    def _sync_device_after_mamba_recv(self, done: set[str], failed: set[str]) -> None: ...


class Worker30(Worker):
    """vLLM 0.30 and later: they have a function of their own."""

    def get_finished(self) -> set[str]:
        done: set[str] = set()
        self._reap_expired_send_leases(done)
        return done

    def _reap_expired_send_leases(self, done: set[str]) -> None:
        done |= self.release()


@pytest.fixture
def traced(rings: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in (("NCCLSCOPE_DIR", str(rings)), ("RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    session._reset()
    yield
    session._reset()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("kind", [Worker26, Worker30])
def test_blocks_that_nobody_pulled_in_time_are_expired(kind: type[Worker26 | Worker30]) -> None:
    patch = NixlTransfers()
    patch.active = True
    patch.install(SimpleNamespace(NixlBaseConnectorWorker=kind))
    try:
        table = transfers.table()
        assert table is not None
        for request in ("over", "held"):
            table.put(Transfer(id=request, request=request, direction="send", engine="prefill"))
        assert kind().get_finished() == {"over"}
    finally:
        patch.revert()

    tracer = session.current()
    assert tracer is not None
    found = {one.id: (one.state, one.phase) for one in read(tracer.path).transfers}
    assert found["over"] == ("expired", "lease over")
    assert found["held"][0] != "expired"
