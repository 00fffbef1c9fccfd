"""The load: requests by HTTP, and what their answers have to be."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from plan import Plan
from truth import VOCABULARY, continuation, routing

from ncclscope.errors import InputError, UsageError
from ncclscope_patches.routed_experts import decode_choice, routed_tokens

__all__ = ["Ask", "Judged", "Load", "Reply", "ask", "judge", "run_load"]

_POLL_SECONDS = 0.05
_STAGGER = 8
"""Tokens that each replica generates longer than the one before it, in a burst."""
_COMMON = 64
"""Tokens that all prompts begin with at most, as instructions do."""


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        prompt: Its tokens.
        max_tokens: Tokens to be generated.
        wanted: Whether it opts in.
        encoding: How its routing is to be written.
        replica: Where it is to run; None where the front may choose.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    wanted: bool
    encoding: str = "npy"
    replica: int | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Those of HTTP."""
        headers = {"Content-Type": "application/json"}
        if self.replica is not None:
            headers["X-data-parallel-rank"] = str(self.replica)
        return headers

    @property
    def body(self) -> bytes:
        """As JSON."""
        document: dict[str, Any] = {"prompt": self.prompt, "max_tokens": self.max_tokens}
        if self.wanted:
            document["vllm_xargs"] = {
                "return_routed_experts": True,
                "routed_experts_encoding": self.encoding,
            }
        return json.dumps(document).encode()


@dataclass(frozen=True)
class Load:
    """Requests of reinforcement learning: several samples of each prompt.

    Attributes:
        requests: How many, before the burst.
        concurrency: How many at a time; as many again make up the burst.
        samples: Requests with one prompt.
        prompt_tokens: Tokens of the longest prompt.
        max_tokens: Tokens that each request has generated.
        burst_tokens: Tokens of the burst's one prompt; 0 for no burst. Of the burst, all requests
            of a replica end in one step, or nearly so, while the next replica still generates.
        share: Of the requests that opt in.
        seed: Where prompts come from.
        fixed: Whether all prompts are as long as the longest, and have no beginning in common.
    """

    requests: int = 96
    concurrency: int = 64
    samples: int = 4
    prompt_tokens: int = 768
    max_tokens: int = 16
    burst_tokens: int = 4096
    share: float = 1.0
    seed: int = 0
    fixed: bool = False

    def __str__(self) -> str:
        burst = f";\nthen {self.concurrency} of one prompt of {self.burst_tokens:,} tokens"
        return (
            f"{self.requests} requests, {self.concurrency} at a time, {self.samples} of a prompt, "
            f"up to {self.prompt_tokens} + {self.max_tokens} tokens"
            f"{burst if self.burst_tokens else ''}"
        )

    def check(self, plan: Plan) -> None:
        """Refuse what cannot be run.

        Raises:
            UsageError: With the reason.
        """
        least = {"requests": 1, "concurrency": 1, "prompt_tokens": 4, "max_tokens": 1}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise UsageError(
                    f"{name}={getattr(self, name)} is too small", f"give at least {number}"
                )
        if not 0 <= self.share <= 1:
            raise UsageError(f"share={self.share} is no share", "give 0 to 1")
        longest = max(self.prompt_tokens, self.burst_tokens) + self.max_tokens
        longest += _STAGGER * (plan.dp - 1)
        if longest > plan.slots:
            raise UsageError(f"{longest} tokens do not fit into {plan.blocks} KV blocks")

    def phases(self, replicas: int = 1) -> list[list[Ask]]:
        """Return the requests; each phase begins when the one before it has been answered.

        Args:
            replicas: Over which the burst is spread.
        """
        dice = random.Random(self.seed)
        common = () if self.fixed else self._tokens(dice, min(_COMMON, self.prompt_tokens // 4))
        steady: list[Ask] = []
        while len(steady) < self.requests:
            shortest = self.prompt_tokens if self.fixed else self.prompt_tokens // 2
            length = dice.randint(shortest, self.prompt_tokens)
            prompt = common + self._tokens(dice, length - len(common))
            count = min(self.samples, self.requests - len(steady))
            steady += [self._ask(dice, prompt) for _ in range(count)]
        burst: list[Ask] = []
        if self.burst_tokens:
            prompt = self._tokens(dice, self.burst_tokens)
            for number in range(self.concurrency):
                replica = number % replicas
                later = self.max_tokens + _STAGGER * replica
                asked = self._ask(dice, prompt)
                burst.append(replace(asked, max_tokens=later, replica=replica))
        return [phase for phase in (steady, burst) if phase]

    def _ask(self, dice: random.Random, prompt: tuple[int, ...]) -> Ask:
        # Drawn for each row of the table, so that all have the same prompts.
        return Ask(prompt, self.max_tokens, dice.random() < self.share)

    @staticmethod
    def _tokens(dice: random.Random, count: int) -> tuple[int, ...]:
        return tuple(dice.randrange(VOCABULARY) for _ in range(count))


@dataclass(frozen=True)
class Reply:
    """An answer as it came; without a body where none did."""

    asked: Ask
    status: int = 0
    body: bytes = b""


def ask(port: int, asked: Ask, timeout: float = 120.0) -> Reply:
    """Send one request and wait for its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    with contextlib.closing(connection):
        return _exchange(connection, asked)


def run_load(
    port: int, phases: Sequence[Sequence[Ask]], concurrency: int, hung: Callable[[], bool]
) -> tuple[list[Reply], float]:
    """Send requests, a given number at a time.

    Args:
        port: Where to.
        phases: The requests.
        concurrency: How many wait for their answers at a time.
        hung: Whether no further answers are to be expected.

    Returns:
        Answers, and the seconds that it took. After a hang not all have come.
    """
    replies: list[Reply] = []
    begun = time.monotonic()
    for phase in phases:
        todo: queue.SimpleQueue[Ask] = queue.SimpleQueue()
        for asked in phase:
            todo.put(asked)
        count = min(concurrency, len(phase))
        over = threading.Semaphore(0)
        for _ in range(count):
            # They end with the process where an answer never comes.
            threading.Thread(target=_client, args=(port, todo, replies, over), daemon=True).start()
        done = 0
        while done < count:
            done += over.acquire(timeout=_POLL_SECONDS)
            if hung():
                seconds = time.monotonic() - begun
                # Clients that are cut off would go on with the next run, on a port that has it.
                with contextlib.suppress(queue.Empty):
                    while True:
                        todo.get_nowait()
                return list(replies), seconds
    return replies, time.monotonic() - begun


def _client(
    port: int, todo: queue.SimpleQueue[Ask], replies: list[Reply], over: threading.Semaphore
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        with contextlib.closing(connection):
            while True:
                replies.append(_exchange(connection, todo.get_nowait()))
    except queue.Empty:
        pass
    finally:
        over.release()


def _exchange(connection: http.client.HTTPConnection, asked: Ask) -> Reply:
    try:
        connection.request("POST", "/v1/completions", asked.body, asked.headers)
        response = connection.getresponse()
        return Reply(asked, response.status, response.read())
    except (OSError, http.client.HTTPException):
        connection.close()
        return Reply(asked)


@dataclass
class Judged:
    """Score of the answers.

    Attributes:
        answered: Requests with an answer.
        unanswered: Requests without.
        wrong_tokens: Answers with other tokens than the model generates.
        refused: Requests that opted in, and whose answer has no routing or one of another size.
        right: Rows of routing that are the truth.
        missing: Rows that are marked as missing.
        wrong: Rows that are neither.
        tokens: Tokens that were generated.
    """

    answered: int = 0
    unanswered: int = 0
    wrong_tokens: int = 0
    refused: int = 0
    right: int = 0
    missing: int = 0
    wrong: int = 0
    tokens: int = 0

    def add(self, plan: Plan, reply: Reply) -> None:
        """Judge an answer."""
        if reply.status != 200:
            self.unanswered += 1
            return
        self.answered += 1
        asked = reply.asked
        (choice,) = json.loads(reply.body)["choices"]
        generated = continuation(asked.prompt, asked.max_tokens)
        self.tokens += len(choice["token_ids"])
        self.wrong_tokens += choice["token_ids"] != generated
        try:
            routed = decode_choice(choice)
        except InputError:
            routed = None
        if not asked.wanted:
            self.refused += routed is not None
            return
        count = routed_tokens(len(asked.prompt), len(generated))
        if routed is None or routed.ids.shape != (count, plan.layers, plan.top_k):
            self.refused += 1
            return
        tokens = np.asarray([*asked.prompt, *generated][:count])
        truth = routing(tokens, np.arange(count), plan.layers, plan.top_k, plan.experts)
        equal = (routed.ids == truth).all(axis=(1, 2))
        self.missing += routed.missing_count
        self.right += int((equal & ~routed.missing).sum())
        self.wrong += int((~equal & ~routed.missing).sum())


def judge(plan: Plan, replies: Sequence[Reply], sent: int) -> Judged:
    """Hold answers against the truth.

    Args:
        plan: Of the run.
        replies: The answers.
        sent: How many requests there were.
    """
    judged = Judged(unanswered=sent - len(replies))
    for reply in replies:
        judged.add(plan, reply)
    return judged
