"""KV transfers between two vLLM servers on GPUs of their own, over NIXL: `pytest -m gpu`.

Needs two GPUs, or four for two workers a server, and the `nixl` wheels beside vLLM's CUDA build.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
import torch

from tests.integration.kv_pair import PATIENCE_SECONDS, TOKENS, KvPair, wait_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(580),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

LEASE_SECONDS = 20
SETS = ("0,1", "2,3") if torch.cuda.device_count() >= 4 else ("0", "1")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvPair]:
    """Two servers; the tests follow each other, and the last one kills prefill."""
    pytest.importorskip("vllm")
    pytest.importorskip("nixl")
    with KvPair(tmp_path_factory.mktemp("pair"), lease_seconds=LEASE_SECONDS, gpus=SETS) as pair:
        yield pair


def test_healthy_requests_are_completed_with_equal_tokens(pair: KvPair) -> None:
    pair.join()
    for first in range(20, 40):
        prompt = list(range(first, first + 100))
        whole = pair.prefill.complete(prompt, TOKENS, PATIENCE_SECONDS)
        assert pair.decoded(prompt, pair.prefilled(prompt)) == whole
    status, document = pair.diagnose()
    assert (status, document["status"]) == (0, "ok"), document["summary"]
    assert all(one.bytes > 0 for one in pair.ends("recv") if one.state == "completed")


def test_expired_blocks_are_named(pair: KvPair) -> None:
    pair.join()
    prompt = list(range(300, 400))
    given = pair.prefilled(prompt)
    number = given["remote_request_id"]
    wait_for(lambda: any(one.id == number and one.state == "expired" for one in pair.ends("send")))
    with pair.asked(prompt, given) as answer:
        answer.exception()  # what vLLM makes of it is not what is asked here
    status, document = pair.diagnose()
    assert status == 1
    assert pair.stalled(document)["transfer"]["id"] == number


def test_a_stopped_worker_of_prefill_is_named(pair: KvPair) -> None:
    prompt = list(range(11, 211))
    given = pair.prefilled(prompt)
    stopped = pair.prefill.worker_pids()[-1]
    os.kill(stopped, signal.SIGSTOP)
    try:
        with pair.asked(prompt, given) as answer:
            time.sleep(1.5)  # what is asked for below: for how long it has waited
            status, document = pair.diagnose("--live-stall-after", "1")
            os.kill(stopped, signal.SIGCONT)
            answer.exception()
    finally:
        os.kill(stopped, signal.SIGCONT)
    # A read that needs no help of the other side's processor does not wait for it.
    if not any(one["receive"] for one in document["transfers"]["waiting"]):
        pytest.skip("the blocks were read although the worker was stopped")
    assert (status, document["status"]) == (1, "hung")
    verdict = pair.stalled(document)
    assert stopped in [one["pid"] for one in verdict["transfer"]["processes"]]


def test_a_killed_prefill_engine_is_named(pair: KvPair) -> None:
    prompt = list(range(50, 150))
    given = pair.prefilled(prompt)
    pair.kill_prefill()
    with pair.asked(prompt, given) as answer:
        status, document = pair.diagnose()
        answer.exception()
    assert status == 1
    pair.prefill_has_ended(document)
