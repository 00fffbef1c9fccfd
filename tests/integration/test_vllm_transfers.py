"""KV transfers between a prefill and a decode server of vLLM: healthy, and each way to hang.

The faults follow each other on one pair of servers, since each needs a minute to start.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from ncclscope import open_run
from ncclscope.model import Transfer
from tests.integration.kv_pair import KvPair

pytest.importorskip("vllm")
pytest.importorskip("nixl")

pytestmark = [pytest.mark.vllm, pytest.mark.pairs, pytest.mark.timeout(1500)]

LEASE_SECONDS = 60
"""Longer than a decode server needs for its first read on a busy machine."""
TOKENS = 6
HEALTHY = 20
PATIENCE_SECONDS = 120.0

Document = dict[str, Any]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvPair]:
    with KvPair(tmp_path_factory.mktemp("pair"), lease_seconds=LEASE_SECONDS, blocks=12) as pair:
        yield pair


@pytest.fixture(scope="module")
def forgotten(pair: KvPair) -> tuple[list[int], Document]:
    """A request that prefill has answered, and decode hears of when its blocks are freed."""
    prompt = list(range(300, 400))
    return prompt, pair.prefilled(prompt)


def ends(pair: KvPair, direction: str) -> list[Transfer]:
    run = open_run(*pair.rings)
    return [
        one for process in run.processes for one in process.transfers if one.direction == direction
    ]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@contextlib.contextmanager
def asked(pair: KvPair, prompt: list[int], given: Document) -> Iterator[Future[list[int]]]:
    """Ask decode for an answer, which may not come."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(pair.decoded, prompt, TOKENS, given, PATIENCE_SECONDS)


def stalled(document: Document, pair: KvPair) -> Document:
    """Check what every verdict on a transfer names: request, engines, since when."""
    verdict: Document = document["verdict"]
    assert verdict["kind"] == "transfer_stalled", document["summary"]
    assert verdict["transfer"]["request"] in verdict["summary"]
    said = f"{verdict['summary']} {verdict['evidence']}"
    assert pair.engines["prefill"] in said
    assert verdict["transfer"]["waited_seconds"] >= 0
    return verdict


def test_a_wrong_port_is_named_beside_the_right_one(pair: KvPair) -> None:
    prompt = list(range(10, 110))
    given = pair.prefilled(prompt)
    right, wrong = given["remote_port"], 9  # "discard", at which nobody answers
    with asked(pair, prompt, {**given, "remote_port": wrong}) as answer:
        wait_for(lambda: any(one.port == wrong for one in ends(pair, "recv")))
        status, document = pair.diagnose()
        assert isinstance(answer.exception(), RuntimeError)  # vLLM fails it after its timeout
    assert status == 1
    verdict = stalled(document, pair)
    said = f"asks 127.0.0.1:{wrong}, but engine {pair.engines['prefill']} answers handshakes at"
    assert f"{said} 127.0.0.1:{right}" in verdict["summary"]
    assert pair.engines["decode"] in verdict["summary"]
    assert "vLLM fails the request" in verdict["inferred"][0]

    failed = stalled(pair.diagnose()[1], pair)
    assert "no answer" in failed["summary"]
    assert said in failed["summary"]


def join(pair: KvPair) -> None:
    """Have the engines shake hands; vLLM waits only 5 s for it, even on a busy machine."""
    warm = list(range(5, 105))
    for attempts_left in reversed(range(5)):
        try:
            pair.decoded(warm, TOKENS, pair.prefilled(warm), PATIENCE_SECONDS)
            return
        except RuntimeError:
            if not attempts_left:
                raise


def test_healthy_requests_raise_no_alarm_and_tokens_are_equal(pair: KvPair) -> None:
    join(pair)
    for number in range(HEALTHY):
        prompt = list(range(20 + number, 120 + number))
        whole = pair.prefill.complete(prompt, TOKENS)
        given = pair.prefilled(prompt)
        assert pair.decoded(prompt, TOKENS, given, PATIENCE_SECONDS) == whole
        if number % 5 == 4:
            status, document = pair.diagnose()
            assert (status, document["status"]) == (0, "ok"), document["summary"]
    wait_for(lambda: len([one for one in ends(pair, "send") if one.state == "completed"]) > HEALTHY)
    received = [one for one in ends(pair, "recv") if one.state == "completed"]
    assert len({one.id for one in received}) >= HEALTHY
    assert all(one.bytes > 0 for one in received)
    assert all(one.engine == pair.engines["decode"] for one in received)


def test_a_request_whose_second_half_was_lost_is_named(
    pair: KvPair, forgotten: tuple[list[int], Document]
) -> None:
    time.sleep(2.5)  # what is asked for below: for how long nobody has asked for the blocks
    status, document = pair.ask("diagnose", *map(str, pair.rings), "--live-stall-after", "2")
    assert status == 1
    verdict = stalled(document, pair)
    held = {one["send"]["id"] for one in document["transfers"]["waiting"] if one["send"]}
    assert forgotten[1]["remote_request_id"] in held
    assert "never received the request" in verdict["summary"]
    assert verdict["confidence"] == "likely"
    assert "vLLM frees the blocks at" in verdict["inferred"][0]


def test_a_stopped_worker_is_named_and_decode_without_blocks_is_a_consequence(
    pair: KvPair,
) -> None:
    prompts = [list(range(start, start + 200)) for start in (11, 12)]
    whole = [pair.prefill.complete(prompt, TOKENS) for prompt in prompts]
    given = [pair.prefilled(prompt) for prompt in prompts]
    (worker,) = pair.prefill.worker_pids()
    os.kill(worker, signal.SIGSTOP)
    try:
        with asked(pair, prompts[0], given[0]) as first:
            reads = given[0]["remote_request_id"]
            wait_for(lambda: any(one.id == reads for one in ends(pair, "recv")))
            with asked(pair, prompts[1], given[1]) as second:
                later = given[1]["remote_request_id"]
                wait_for(lambda: any(one.id == later for one in ends(pair, "recv")))
                time.sleep(1.5)
                command = ["diagnose", *map(str, pair.rings), "--live-stall-after", "1"]
                status, document = pair.ask(*command)
                os.kill(worker, signal.SIGCONT)
                assert [first.result(), second.result()] == whole
    finally:
        os.kill(worker, signal.SIGCONT)
    assert (status, document["status"]) == (1, "hung")
    verdict = stalled(document, pair)
    assert f"(pid {worker}) of the sending engine" in verdict["summary"]
    assert "is stopped by a signal" in verdict["summary"]
    assert verdict["confidence"] == "certain"
    assert [one["pid"] for one in verdict["transfer"]["processes"]] == [worker]
    assert any("no timeout" in line for line in verdict["inferred"])
    (consequence,) = [one for one in document["findings"] if one["role"] == "consequence"]
    assert "has no free KV blocks for it" in consequence["summary"]


def test_blocks_that_were_read_after_their_lease_are_named(
    pair: KvPair, forgotten: tuple[list[int], Document]
) -> None:
    prompt, given = forgotten
    number = given["remote_request_id"]
    wait_for(lambda: any(one.id == number and one.state == "expired" for one in ends(pair, "send")))
    pair.decoded(prompt, TOKENS, given)
    status, document = pair.diagnose()
    assert (status, document["status"]) == (1, "diverged")
    verdict = stalled(document, pair)
    assert verdict["transfer"]["id"] == number
    assert "after the sending engine had freed them" in verdict["summary"]
    assert "tokens may be wrong" in verdict["summary"]


def test_a_decode_server_of_another_model_is_refused_by_name(pair: KvPair, tmp_path: Path) -> None:
    with pair.other_decode(tmp_path) as (other, rings):
        prompt = list(range(40, 140))
        given = pair.prefilled(prompt)
        with pytest.raises(RuntimeError):
            other.answer(prompt, TOKENS, PATIENCE_SECONDS, kv_transfer_params=given)
        status, document = pair.ask("diagnose", str(pair.rings[0]), str(rings))
    assert status == 1
    verdict = stalled(document, pair)
    assert "incompatible configuration" in verdict["summary"]
    assert verdict["transfer"]["engine"] in verdict["summary"]


def test_a_prefill_engine_that_was_killed_after_its_answer_is_named(pair: KvPair) -> None:
    prompt = list(range(50, 150))
    given = pair.prefilled(prompt)
    pids = pair.prefill.pids()
    gone = [psutil.Process(pid) for pid in pids]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    psutil.wait_procs(gone, timeout=10)
    with asked(pair, prompt, given) as answer:
        number = given["remote_request_id"]
        wait_for(lambda: any(one.id == number for one in ends(pair, "recv")))
        status, document = pair.diagnose()
        assert answer.exception() is not None
    assert status == 1
    verdict = stalled(document, pair)
    assert f"the sending engine {pair.engines['prefill']}" in verdict["summary"]
    assert "has ended" in verdict["summary"]
    assert {one["pid"] for one in verdict["transfer"]["processes"]} <= set(pids)
    assert verdict["confidence"] == "certain"

    again, after = pair.diagnose()  # vLLM has failed the request by now
    assert (again, after["verdict"]["kind"]) == (1, "transfer_stalled")
    assert "has ended" in after["verdict"]["summary"]
