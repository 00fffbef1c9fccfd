"""Connectors of vLLM other than NIXL's usual one: what is recorded of them, healthy and hanging."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.kv_pair import NCCLSCOPE, TOKENS, KvPair, ask, wait_for
from tests.integration.vllm_server import VllmServer

pytest.importorskip("vllm")
pytest.importorskip("nixl")

pytestmark = [pytest.mark.vllm, pytest.mark.pairs, pytest.mark.timeout(900)]

PROMPT = list(range(30, 130))


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="module")
def stored(storage: Path) -> Iterator[tuple[VllmServer, Path]]:
    """Run one server that keeps the KV blocks of each prompt in files."""
    directory = storage.with_name("stored")
    directory.mkdir()
    transfer = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(storage)},
    }
    rings = directory / "rings"
    with VllmServer(
        directory,
        tensor_parallel_size=1,
        prefix=[*NCCLSCOPE, "run", "--dir", str(rings), "--"],
        arguments=[
            *("--block-size", "32"),
            *("--distributed-executor-backend", "mp"),
            *("--no-enable-prefix-caching", "--disable-hybrid-kv-cache-manager"),
            *("--kv-transfer-config", json.dumps(transfer)),
        ],
    ) as server:
        yield server, rings


def test_blocks_that_a_step_loads_from_files_are_no_transfers(
    stored: tuple[VllmServer, Path], storage: Path
) -> None:
    server, rings = stored
    whole = server.complete(PROMPT, TOKENS, 120.0)
    assert list(storage.rglob("*.safetensors"))
    assert server.complete(PROMPT, TOKENS, 120.0) == whole
    assert "External Cache Hit!" in server.log_path.read_text(errors="replace")
    status, document = ask("diagnose", str(rings))
    assert (status, document["status"]) == (0, "ok"), document["summary"]
    assert document.get("transfers") is None or not document["transfers"]["states"]


def test_a_load_that_blocks_a_step_is_no_agreement(
    stored: tuple[VllmServer, Path], storage: Path
) -> None:
    server, rings = stored
    file = min(storage.rglob("*.safetensors"))
    file.unlink()
    os.mkfifo(file)  # as a mount that does not answer
    (worker,) = server.worker_pids()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.complete, PROMPT, TOKENS, 120.0)
        time.sleep(8.0)
        statuses = (
            ask("diagnose", str(rings), "--live-stall-after", "3"),
            ask("attach", str(worker)),
        )
        file.unlink()
        server.kill()
        assert answer.exception() is not None
    for status, document in statuses:
        print(status, json.dumps(document)[:3000], file=sys.stderr)
        assert document["status"] != "ok", document["summary"]
    assert "start_load_kv" in json.dumps(statuses[1][1])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, storage: Path) -> Iterator[KvPair]:
    files = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(storage / "multi")},
    }
    parts = [
        {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"},
        files,
    ]
    transfer = {
        "kv_connector": "MultiConnector",
        "kv_connector_extra_config": {"connectors": parts},
    }
    with KvPair(
        tmp_path_factory.mktemp("multi"),
        lease_seconds=60,
        decode=["--disable-hybrid-kv-cache-manager"],
        transfer=transfer,
    ) as pair:
        yield pair


def test_transfers_through_a_part_of_several_are_recorded_at_both_ends(pair: KvPair) -> None:
    pair.join()
    for first in range(40, 46):
        prompt = list(range(first, first + 100))
        whole = pair.prefill.complete(prompt, TOKENS, 120.0)
        assert pair.decoded(prompt, pair.prefilled(prompt)) == whole
    wait_for(lambda: all(one.ended for one in [*pair.ends("send"), *pair.ends("recv")]))
    status, document = pair.diagnose()
    assert (status, document["status"]) == (0, "ok"), document["summary"]
    for direction in ("send", "recv"):
        done = {one.id for one in pair.ends(direction) if one.state == "completed"}
        assert len(done) >= 6, pair.ends(direction)


def test_a_stopped_sender_is_named_there_too(pair: KvPair) -> None:
    prompt = list(range(11, 111))
    given = pair.prefilled(prompt)
    (worker,) = pair.prefill.worker_pids()
    os.kill(worker, signal.SIGSTOP)
    try:
        with pair.asked(prompt, given) as answer:
            time.sleep(1.5)
            status, document = pair.diagnose("--live-stall-after", "1")
            os.kill(worker, signal.SIGCONT)
            answer.result()
    finally:
        os.kill(worker, signal.SIGCONT)
    assert (status, document["status"]) == (1, "hung")
    verdict = pair.stalled(document)
    assert f"(pid {worker}) of the sending engine" in verdict["summary"]
    assert "is stopped by a signal" in verdict["summary"]
