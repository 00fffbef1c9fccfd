"""The HTTP front: vLLM's completions, as far as this needs them.

POST /v1/completions
{"prompt": [1, 2, 3], "max_tokens": 4, "vllm_xargs": {"return_routed_experts": true}}
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import numpy as np
import uvicorn
from fastapi import FastAPI, Header, HTTPException
from plan import Plan
from pydantic import BaseModel, Field
from truth import VOCABULARY
from wire import Frame, read_frame, write_frame

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts import RoutedExperts, RoutingRequest, choice_fields

__all__ = ["Front", "run_front"]


class Completion(BaseModel):
    """Body of a request.

    Attributes:
        prompt: Tokens.
        max_tokens: As many are generated.
        vllm_xargs: Among them whether routed experts are returned, and how.
    """

    prompt: list[int] = Field(min_length=1)
    max_tokens: int = Field(default=16, ge=1)
    vllm_xargs: dict[str, Any] | None = None


class Front:
    """Hands requests to engines and their answers back.

    Args:
        plan: Of the run.
        ends: A socket to each engine.
        leash: A socket whose other end is let go when the front is to end.
    """

    server: uvicorn.Server

    def __init__(self, plan: Plan, ends: list[socket.socket], leash: socket.socket) -> None:
        self.plan = plan
        self._ends = ends
        self._leash = leash
        self._writers: list[asyncio.StreamWriter] = []
        self._answers: dict[str, asyncio.Future[Frame]] = {}
        self._load = [0] * len(ends)
        self._ready = 0
        self._submitted = 0
        self._names = itertools.count()
        self.app = FastAPI(lifespan=self._live)
        self.app.get("/health")(self.health)
        self.app.post("/v1/completions")(self.complete)

    async def health(self) -> dict[str, int]:
        """Say how many engines are ready; 503 where not all are."""
        if self._ready < len(self._ends):
            raise HTTPException(503, f"{self._ready} of {len(self._ends)} engines are ready")
        return {"engines": self._ready}

    async def complete(
        self, body: Completion, x_data_parallel_rank: Annotated[int | None, Header()] = None
    ) -> dict[str, Any]:
        """Generate, on the replica that a header may name, as in vLLM."""
        try:
            routing = RoutingRequest.parse(body.vllm_xargs)
        except UsageError as error:
            raise HTTPException(400, str(error)) from None
        if len(body.prompt) + body.max_tokens > self.plan.slots:
            raise HTTPException(400, f"the KV cache holds {self.plan.slots} tokens")
        if not 0 <= min(body.prompt) <= max(body.prompt) < VOCABULARY:
            raise HTTPException(400, f"tokens are numbers below {VOCABULARY}")
        name = f"cmpl-{next(self._names)}"
        engine = x_data_parallel_rank
        if engine is None:
            engine = self._load.index(min(self._load))
        elif not 0 <= engine < len(self._load):
            raise HTTPException(400, f"there is no replica {engine}")
        self._load[engine] += 1
        answer = self._answers[name] = asyncio.get_running_loop().create_future()
        header = {"name": name, "max_tokens": body.max_tokens, "wanted": routing.wanted}
        self._submit(engine, header, np.asarray(body.prompt, np.int32))
        try:
            frame = await answer
        finally:
            self._load[engine] -= 1
            del self._answers[name]
        tokens = frame.arrays[0].tolist()
        choice = {"index": 0, "text": "", "token_ids": tokens, "finish_reason": "length"}
        routed = None
        if len(frame.arrays) > 1:
            _, ids, missing = frame.arrays
            routed = RoutedExperts(ids, missing, frame.header["prompt_tokens"])
        choice |= choice_fields(routed, routing.encoding)
        usage = {"prompt_tokens": len(body.prompt), "completion_tokens": len(tokens)}
        return {"id": name, "object": "text_completion", "choices": [choice], "usage": usage}

    def _submit(self, engine: int | None, header: dict[str, Any], *arrays: Any) -> None:
        """Send a message to one engine, and wake all others."""
        self._submitted += 1
        for number, writer in enumerate(self._writers):
            if engine is None or number == engine:
                write_frame(writer, {"number": self._submitted, **header}, arrays)
            else:
                write_frame(writer, {"number": self._submitted})

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        """Take what an engine has to say, until it goes."""
        while True:
            try:
                frame = await read_frame(reader)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            if "ready" in frame.header:
                self._ready += 1
            elif (answer := self._answers.get(frame.header["finished"])) and not answer.done():
                answer.set_result(frame)

    async def _heed(self, leash: asyncio.StreamReader) -> None:
        await leash.read()
        self.server.should_exit = True

    @asynccontextmanager
    async def _live(self, _app: FastAPI) -> AsyncIterator[None]:
        followers = []
        leash, _ = await asyncio.open_connection(sock=self._leash)
        heeding = asyncio.create_task(self._heed(leash))
        for end in self._ends:
            reader, writer = await asyncio.open_connection(sock=end, limit=1 << 24)
            self._writers.append(writer)
            followers.append(asyncio.create_task(self._follow(reader)))
        yield
        heeding.cancel()
        self._submit(None, {"stop": True})
        await asyncio.gather(*followers)


def run_front(
    plan: Plan, ends: list[socket.socket], leash: socket.socket, listener: socket.socket
) -> None:
    """Run the process until the other end of the leash is closed."""
    front = Front(plan, ends, leash)
    config = uvicorn.Config(front.app, log_level="warning", access_log=False)
    front.server = uvicorn.Server(config)
    front.server.run(sockets=[listener])
