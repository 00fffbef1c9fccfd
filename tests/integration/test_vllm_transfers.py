"""KV transfers between a prefill and a decode server of vLLM: healthy, and the usual ways to hang.

The tests follow each other on one pair of servers, since each needs a minute to start.
`test_vllm_transfer_faults.py` has the other ways.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.kv_pair import (
    NCCLSCOPE,
    PATIENCE_SECONDS,
    TOKENS,
    Document,
    KvPair,
    wait_for,
)

pytest.importorskip("vllm")
pytest.importorskip("nixl")

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

LEASE_SECONDS = 60
"""Longer than a decode server needs for its first read on a busy machine."""
# At most 1,000: a ring keeps the newest 1,024 transfers.
REQUESTS = int(os.environ.get("NCCLSCOPE_TEST_REQUESTS", "20"))
PAUSE_SECONDS = 0.5
MOST_COST = 0.01
"""Share of the time of requests that recording their transfers may take."""
ATTACH_SECONDS = 5.0
OTHERS = "jobs run here"
"""What `attach` without PIDs says while other tests run workers on the same machine."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvPair]:
    with KvPair(tmp_path_factory.mktemp("pair"), lease_seconds=LEASE_SECONDS, blocks=12) as pair:
        yield pair


def test_healthy_requests_raise_no_alarm_and_tokens_are_equal(pair: KvPair, tmp_path: Path) -> None:
    pair.join()
    before = {one.id for one in pair.ends("recv")}
    recorded, calls = pair.recording()
    served = 0.0
    seen = tmp_path / "watch.jsonl"
    with seen.open("w") as file:
        watch = subprocess.Popen(
            [*NCCLSCOPE, "watch", *map(str, pair.rings), "--json"], stdout=file
        )
    try:
        for number in range(REQUESTS):
            first = 20 + number % 300
            prompt = list(range(first, first + 100 - number // 300))
            whole = pair.prefill.complete(prompt, TOKENS, PATIENCE_SECONDS)
            began = time.monotonic()
            tokens = pair.decoded(prompt, pair.prefilled(prompt))
            served += time.monotonic() - began
            assert tokens == whole
            if number % 5 == 4:
                time.sleep(PAUSE_SECONDS)  # a pause of the traffic
        ends = pair.ends
        wait_for(lambda: all(one.ended for one in [*ends("send"), *ends("recv")]))
    finally:
        watch.terminate()
        watch.wait(30)
    after = pair.recording()
    print(
        f"{REQUESTS} requests in {served:.1f} s, of which {after[1] - calls} calls "
        f"took {1e3 * (after[0] - recorded):.1f} ms of a processor"
    )
    assert after[1] > calls
    assert after[0] - recorded < MOST_COST * served
    statuses = [json.loads(line)["status"] for line in seen.read_text().splitlines()]
    assert statuses, "watch printed nothing"
    assert not set(statuses) & {"diverged", "hung"}, statuses
    status, document = pair.diagnose()
    assert (status, document["status"]) == (0, "ok"), document["summary"]
    received = [one for one in pair.ends("recv") if one.id not in before]
    assert len({one.id for one in received}) == REQUESTS
    assert {one.state for one in received} == {"completed"}
    assert all(one.bytes > 0 for one in received)
    assert all(one.engine == pair.engines["decode"] for one in received)


def test_a_request_whose_second_half_was_lost_is_named(pair: KvPair) -> None:
    given = pair.prefilled(list(range(300, 400)))
    time.sleep(2.5)  # what is asked for below: for how long nobody has asked for the blocks
    status, document = pair.diagnose("--live-stall-after", "2")
    assert status == 1
    verdict = pair.stalled(document)
    held = {one["send"]["id"] for one in document["transfers"]["waiting"] if one["send"]}
    assert given["remote_request_id"] in held
    assert "never received the request" in verdict["summary"]
    assert verdict["confidence"] == "likely"
    assert "vLLM frees the blocks at" in verdict["inferred"][0]
    pair.decoded(list(range(300, 400)), given)


def test_a_stopped_worker_is_named_and_decode_without_blocks_is_a_consequence(
    pair: KvPair,
) -> None:
    prompts = [list(range(start, start + 200)) for start in (11, 12)]
    whole = [pair.prefill.complete(prompt, TOKENS, PATIENCE_SECONDS) for prompt in prompts]
    given = [pair.prefilled(prompt) for prompt in prompts]
    (worker,) = pair.prefill.worker_pids()
    os.kill(worker, signal.SIGSTOP)
    try:
        with pair.asked(prompts[0], given[0]) as first, pair.asked(prompts[1], given[1]) as second:
            time.sleep(1.5)
            status, document = pair.diagnose("--live-stall-after", "1")
            attached = attach(pair)
            os.kill(worker, signal.SIGCONT)
            assert [first.result(), second.result()] == whole
    finally:
        os.kill(worker, signal.SIGCONT)
    assert (status, document["status"]) == (1, "hung")
    verdict = pair.stalled(document)
    assert f"(pid {worker}) of the sending engine" in verdict["summary"]
    assert "is stopped by a signal" in verdict["summary"]
    assert verdict["confidence"] == "certain"
    assert [one["pid"] for one in verdict["transfer"]["processes"]] == [worker]
    assert any("no timeout" in line for line in verdict["inferred"])
    (consequence,) = [one for one in document["findings"] if one["role"] == "consequence"]
    assert "has no free KV blocks for it" in consequence["summary"]

    status, document, seconds = attached
    assert (status, document["status"]) == (1, "hung")
    assert f"(pid {worker}) of the sending engine" in pair.stalled(document)["summary"]
    assert seconds < ATTACH_SECONDS


def attach(pair: KvPair) -> tuple[int, Document, float]:
    """Attach without PIDs; return exit status, document and seconds.

    While other tests run workers on this machine, `attach` asks for the PIDs of one system. The
    seconds are those of its samples and of processors, as other processes may have these.
    """
    command = [*NCCLSCOPE, "attach", "--json"]
    pids = [str(pid) for one in (pair.prefill, pair.decode) for pid in one.worker_pids()]
    for words in ([], pids):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [*command, *words], capture_output=True, text=True, check=False, timeout=240
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if OTHERS not in done.stderr:
            break
    assert done.stdout, done.stderr
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    document = json.loads(done.stdout)
    return done.returncode, document, used + document["stacks"]["gap"]


def test_a_prefill_engine_that_was_killed_after_its_answer_is_named(pair: KvPair) -> None:
    prompt = list(range(50, 150))
    given = pair.prefilled(prompt)
    pids = pair.kill_prefill()
    with pair.asked(prompt, given) as answer:
        status, document = pair.diagnose()
        assert answer.exception() is not None
    assert status == 1
    verdict = pair.prefill_has_ended(document)
    assert {one["pid"] for one in verdict["transfer"]["processes"]} <= set(pids)
    assert verdict["confidence"] == "certain"

    again, after = pair.diagnose()  # vLLM has failed the request by now
    assert (again, after["verdict"]["kind"]) == (1, "transfer_stalled")
    assert "has ended" in after["verdict"]["summary"]
