"""Real vLLM workers on the CPU: `make test-vllm`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.vllm_server import VOCABULARY_SIZE, VllmServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    with VllmServer(tmp_path_factory.mktemp("vllm")) as server:
        yield server


def test_server_returns_tokens_from_two_workers(server: VllmServer) -> None:
    tokens = server.complete([1, 2, 3, 4, 5], max_tokens=12)

    assert len(tokens) == 12
    assert all(0 <= token < VOCABULARY_SIZE for token in tokens)
    assert len(set(server.worker_pids())) == 2
