"""What tests of a mixture of experts ask of vLLM's workers, and what they check of the answers."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ncclscope import open_run
from ncclscope.attach.stacks import find_py_spy
from ncclscope_patches.routed_experts import decode_choice
from tests.integration.routing_reference import reference_routing
from tests.integration.traced_server import TracedServer
from tests.integration.vllm_server import VllmServer

__all__ = [
    "ARGUMENTS",
    "CPU_MOE",
    "REST_SECONDS",
    "STEP",
    "Answers",
    "answers_of_one",
    "assert_agreed",
    "assert_in_step",
    "assert_routed",
    "assert_serves",
    "hang",
    "ops",
    "posted",
    "rest",
    "stop_an_engine",
    "threads",
    "traced",
]

BUDGET = 24
"""Tokens that a step may have: the longest prompt takes several, beside the tokens of others."""
ARGUMENTS = ["--enable-expert-parallel", "--max-num-batched-tokens", str(BUDGET)]
CPU_MOE = {"NCCLSCOPE_VLLM_CPU_MOE": "1"}
ROUTING = {"NCCLSCOPE_VLLM_ROUTED_EXPERTS": "1"}
PROMPTS = ([1, 2, 3, 4, 5], [7, 300, 12], list(range(20, 90)), [9] * 17)
TOKENS = 12
STAGGER_SECONDS = 0.05
REST_SECONDS = 0.5
STILL_SECONDS = 11.0
"""In less than 10 s, `attach` does not yet call it a hang."""
STEP = r"step (\d+) \((?:\d+ tokens?|dummy)\)"

Answers = list[list[int]]


def answers(server: VllmServer, apart: float = 0.0) -> Answers:
    """Ask for all at once, or some moments apart: one comes while others are being worked on.

    Both replicas work then, each with rows of its own.
    """
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        asked: list[Future[list[int]]] = []
        for prompt in PROMPTS:
            asked.append(pool.submit(server.complete, prompt, TOKENS))
            time.sleep(apart)
        return [one.result() for one in asked]


def assert_serves(server: VllmServer, single: Answers, rest: Callable[[], None]) -> None:
    """Check the answers to a burst, to staggered requests, and to a burst after a pause."""
    assert answers(server) == single
    assert answers(server, STAGGER_SECONDS) == single
    rest()
    assert server.complete(PROMPTS[1], TOKENS) == single[1]  # one replica alone has tokens
    rest()
    assert answers(server) == single


def assert_routed(server: VllmServer, single: Answers) -> None:
    """Check the experts of requests that ask for them, beside others that do not."""

    def ask(prompt: list[int], number: int) -> dict[str, Any]:
        asked = {"return_routed_experts": True} if number else {}
        return server.choice(prompt, TOKENS, vllm_xargs=asked, cache_salt=f"routed {number}")

    with ThreadPoolExecutor(2 * len(PROMPTS)) as pool:
        asked = [
            (prompt, number, pool.submit(ask, prompt, number))
            for prompt in PROMPTS
            for number in range(2)
        ]
    for prompt, number, one in asked:
        choice = one.result()
        assert choice["token_ids"] in single
        found = decode_choice(choice)
        assert (found is None) == (not number)
        if found is not None:
            truth = reference_routing(server.model, [*prompt, *choice["token_ids"]])[:-1]
            assert found.missing_count == 0
            assert np.array_equal(found.ids, truth)


def posted(server: TracedServer, *, asked: bool) -> dict[str, Counter[str]]:
    """Return what rank 0 posts for one request, by communicator."""

    def so_far() -> dict[str, Counter[str]]:
        rank = open_run(server.rings).ranks[0]
        return {
            log.communicator.label: Counter(call.op for call in log.span(log.first, log.calls + 1))
            for log in rank.logs.values()
        }

    before = so_far()
    server.server.choice(
        PROMPTS[2],
        TOKENS,
        vllm_xargs={"return_routed_experts": asked},
        cache_salt=f"posted {asked}",
    )
    rest(server)
    return {label: ops - before.get(label, Counter()) for label, ops in so_far().items()}


def traced(
    directory: Path, dispatch: str = "", asynchronous: str = "", **options: Any
) -> TracedServer:
    environment = {**CPU_MOE, **ROUTING, "NCCLSCOPE_TEST_ASYNC": asynchronous}
    if dispatch:
        environment["NCCLSCOPE_VLLM_DISPATCH"] = dispatch
    return TracedServer(
        directory, environment=environment, checkpoint=True, arguments=ARGUMENTS, **options
    )


def rest(server: TracedServer) -> None:
    """Wait until all workers have waited for work for a while, and the engines have paused."""
    deadline = time.monotonic() + 60
    while True:
        waits = [rank.activities["dequeue"] for rank in open_run(server.rings).ranks]
        idle = time.time_ns() - max(wait.since_ns for wait in waits)
        if all(wait.until_ns is None for wait in waits) and idle > REST_SECONDS * 1e9:
            assert {wait.detail for wait in waits} == {"work"}
            return
        assert time.monotonic() < deadline, waits
        time.sleep(REST_SECONDS / 5)


def ask(server: TracedServer, pool: ThreadPoolExecutor) -> list[Future[list[int]]]:
    """Ask twice at once: each engine gets one."""
    return [pool.submit(server.server.complete, PROMPTS[0], TOKENS) for _ in range(2)]


def wait_until_still(server: TracedServer) -> None:
    """Wait until no worker has recorded anything for a while."""
    deadline = time.monotonic() + 100
    before, since = [0], time.monotonic()
    while time.monotonic() - since < STILL_SECONDS:
        assert time.monotonic() < deadline, before
        counts = [rank.records + rank.lost for rank in open_run(server.rings).ranks]
        if counts != before:
            before, since = counts, time.monotonic()
        time.sleep(REST_SECONDS / 5)


def hang(server: TracedServer, fault: str) -> dict[str, Any]:
    """Plant a fault and ask; nobody is answered.

    Returns:
        The verdict, on which attach while it hangs and diagnose after SIGKILL agree.
    """
    server.plant(fault)
    with ThreadPoolExecutor(2) as pool:
        asked = ask(server, pool)
        wait_until_still(server)
        assert not server.switch.exists(), "no worker came to the place of the fault"
        status, alive = server.attach()
        assert status == 1
        assert not any(one.done() for one in asked)
        pids = server.kill_all()
        for one in asked:
            assert one.exception() is not None
    assert [worker["pid"] for worker in alive["stacks"]["processes"]] == pids
    status, dead = server.diagnose()
    assert status == 1
    assert [row["pid"] for row in dead["table"]] == pids

    verdict: dict[str, Any] = dead["verdict"]
    for name in ("kind", "diverging_ranks", "comm", "seq", "odd", "peers"):
        assert alive["verdict"][name] == verdict[name], name
    for document in (alive, dead):
        assert_placed(document["verdict"]["evidence"])
    return verdict


def stop_an_engine(server: TracedServer, single: Answers) -> dict[str, Any]:
    """Stop the engine of one replica, and let it go on after attach.

    Returns:
        The verdict during the hang: the other replica waits for a worker that nobody asks.
    """
    rest(server)
    with ThreadPoolExecutor(2) as pool, server.server.stopped("VLLM::EngineCore_DP0"):
        asked = ask(server, pool)
        wait_until_still(server)
        status, document = server.attach()
        assert status == 1
        assert not any(one.done() for one in asked)
    assert [one.result() for one in asked] == [single[0]] * 2
    verdict: dict[str, Any] = document["verdict"]
    return verdict


def assert_placed(evidence: list[str]) -> None:
    """Check that the verdict gives the step of all, and what both engines wait for."""
    (places,) = [fact for fact in evidence if " in step " in fact]
    steps = re.findall(rf"\bin {STEP}", places)
    assert len(steps) == len(places.split("; "))
    assert len(set(steps)) == 1, evidence
    for engine, ranks in enumerate(("0 1", "2 3")):
        pattern = (
            rf"engine {engine} \(pid \d+\) waits for \d+ s: ranks {ranks} have not answered "
            r"(execute_model|execute_dummy_batch)"
        )
        assert any(re.fullmatch(pattern, fact) for fact in evidence), evidence


def assert_agreed(server: TracedServer, ranks: int) -> dict[int, dict[str, Any]]:
    """Check that all workers are there and agree; return the table's rows by rank."""
    status, document = server.diagnose()
    assert (status, document["status"]) == (0, "ok"), document
    assert document["ranks"] == {"expected": ranks, "read": ranks, "missing": []}
    return {row["rank"]: row for row in document["table"]}


def ops(server: TracedServer, label: str) -> set[str]:
    """Return what was posted on a communicator."""
    run = open_run(server.rings)
    (key,) = [key for key, comm in run.communicators.items() if comm.label == label]
    logs = [rank.logs[key] for rank in run.ranks]
    return {call.op for log in logs for call in log.span(log.first, log.calls + 1)}


def assert_in_step(server: TracedServer, replicas: list[tuple[int, ...]]) -> None:
    """Check that the workers number their steps alike, as far as the one that is behind has come.

    Engines go on with dummy batches for a while when all is answered.
    """
    run = open_run(server.rings)
    found = [list(rank.steps) for rank in run.ranks]
    behind = min(len(steps) for steps in found)
    numbers = list(range(1, behind + 1))
    assert behind > TOKENS
    most = max(step.tokens or 0 for steps in found for step in steps)
    assert most == BUDGET, "no prompt was cut in pieces"
    for rank, steps in zip(run.ranks, found, strict=True):
        assert [step.number for step in steps[:behind]] == numbers
        assert all(step.dummy == (step.tokens == 0) for step in steps)
        newest = rank.activities["step"]
        assert newest.number == steps[-1].number
        assert newest.detail == ("execute_dummy_batch" if steps[-1].dummy else "sample_tokens")
    for first, *others in replicas:  # a replica's workers do the same
        for other in others:
            assert [(step.tokens, step.dummy) for step in found[first][:behind]] == [
                (step.tokens, step.dummy) for step in found[other][:behind]
            ]


def threads(pid: int) -> str:
    """Return the stacks of a process by thread."""
    program = find_py_spy()
    assert program is not None
    return subprocess.run(
        [program, "dump", "--nonblocking", "--pid", str(pid)], capture_output=True, text=True
    ).stdout


def answers_of_one(directory: Path) -> Answers:
    """Return what one worker answers, without any patch."""
    with VllmServer(directory, tensor_parallel_size=1, checkpoint=True) as server:
        found = answers(server)
    assert len({tuple(one) for one in found}) == len(found), "the answers depend on the prompts"
    return found
