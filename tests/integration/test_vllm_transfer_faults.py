"""Further ways in which a KV transfer between two vLLM servers fails, by NIXL.

`test_vllm_transfers.py` has the usual ones. The faults follow each other on one pair of servers,
since each needs a minute to start.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.kv_pair import (
    BLOCK_SIZE,
    PATIENCE_SECONDS,
    KvPair,
    ask,
    wait_for,
)

pytest.importorskip("vllm")
pytest.importorskip("nixl")

pytestmark = [pytest.mark.vllm, pytest.mark.pairs, pytest.mark.timeout(900)]

LEASE_SECONDS = 30
LONG_REQUESTS = 24
"""Each takes eight of the eleven free blocks of the decode server, so that one runs at a time."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvPair]:
    with KvPair(tmp_path_factory.mktemp("pair"), lease_seconds=LEASE_SECONDS, blocks=12) as pair:
        yield pair


def test_a_wrong_port_is_named_beside_the_right_one(pair: KvPair) -> None:
    prompt = list(range(10, 110))
    given = pair.prefilled(prompt)
    right, wrong = given["remote_port"], 9  # "discard", at which nobody answers
    with pair.asked(prompt, {**given, "remote_port": wrong}) as answer:
        status, document = pair.diagnose()
        assert isinstance(answer.exception(), RuntimeError)  # vLLM fails it after its timeout
    assert status == 1
    verdict = pair.stalled(document)
    fact = f"asks 127.0.0.1:{wrong}, but engine {pair.engines['prefill']} answers handshakes at"
    assert f"{fact} 127.0.0.1:{right}" in verdict["summary"]
    assert pair.engines["decode"] in verdict["summary"]
    assert "vLLM fails the request" in verdict["inferred"][0]

    failed = pair.stalled(pair.diagnose()[1])
    assert "no answer" in failed["summary"]
    assert fact in failed["summary"]


def test_a_request_that_waits_for_blocks_of_a_busy_engine_is_no_hang(pair: KvPair) -> None:
    pair.join()
    prompt = list(range(60, 260))
    given = pair.prefilled(prompt)
    with ThreadPoolExecutor(LONG_REQUESTS) as pool:
        others = [
            pool.submit(pair.decode.complete, list(range(n, n + 200)), 50, 2 * PATIENCE_SECONDS)
            for n in range(LONG_REQUESTS)
        ]
        wait_for(lambda: any(one.done() for one in others))
        with pair.asked(prompt, given) as answer:
            time.sleep(1.5)  # what is asked for below: for how long it has waited
            status, document = pair.diagnose("--live-stall-after", "1")
            answer.result()
        for one in others:
            one.result()
    assert document["verdict"] is None, document["summary"]
    (waits,) = document["findings"]
    assert waits["role"] == "latent"
    assert pair.engines["decode"] in waits["summary"]
    assert "which still generates for other requests" in waits["summary"]
    assert (status, document["status"]) == (3, "unknown")


def test_blocks_that_were_read_after_their_lease_are_named(pair: KvPair) -> None:
    pair.join()  # on a busy machine earlier blocks may have been read late, too
    prompt = list(range(300, 400))
    given = pair.prefilled(prompt)
    number = given["remote_request_id"]
    wait_for(lambda: any(one.id == number and one.state == "expired" for one in pair.ends("send")))
    pair.decoded(prompt, given)
    status, document = pair.diagnose()
    assert (status, document["status"]) == (1, "diverged")
    verdict = pair.stalled(document)
    assert verdict["transfer"]["id"] == number
    assert "after the sending engine had freed them" in verdict["summary"]
    assert "tokens may be wrong" in verdict["summary"]


def test_blocks_of_another_size_fit_or_are_refused(pair: KvPair, tmp_path: Path) -> None:
    larger = str(2 * BLOCK_SIZE)
    prompt = list(range(40, 168))
    with pair.other(tmp_path, "--block-size", larger, role="kv_both") as (other, rings):
        # A decode server may have larger blocks: NIXL fills each from several. On the CPU, vLLM
        # 0.32 then generates other tokens, which no record of a transfer shows.
        pair.decoded(prompt, pair.prefilled(prompt), other)
        status, document = ask("diagnose", str(pair.rings[0]), str(rings))
        assert (status, document["status"]) == (0, "ok"), document["summary"]

        # It may not have smaller ones.
        with pytest.raises(RuntimeError):
            pair.decoded(prompt, pair.prefilled(prompt, other))
        status, document = ask("diagnose", str(pair.rings[1]), str(rings))
    assert status == 1
    verdict = document["verdict"]
    assert verdict["kind"] == "transfer_stalled", document["summary"]
    assert pair.engines["decode"] in verdict["summary"]
    assert "block sizes do not fit" in verdict["summary"]


def test_a_decode_server_of_another_model_is_refused_by_name(pair: KvPair, tmp_path: Path) -> None:
    with pair.other(tmp_path, renamed=True) as (other, rings):
        prompt = list(range(40, 140))
        with pytest.raises(RuntimeError):
            pair.decoded(prompt, pair.prefilled(prompt), other)
        status, document = ask("diagnose", str(pair.rings[0]), str(rings))
    assert status == 1
    verdict = pair.stalled(document)
    assert "incompatible configuration" in verdict["summary"]
    assert verdict["transfer"]["engine"] in verdict["summary"]
