"""Processes that judge: one for many inputs, and one of its own for an input that failed.

A process that judges may die of an input: of a signal, or since its processor time is up. It says
in shared memory which input it has begun, so that its parent knows which one it was. The others
are judged again by the next process, and the one that failed alone, so that an answer never
depends on the inputs before it.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import select
import signal
import struct
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.inputs import Answer, Surface
from tests.fuzz.oracles import limit_space, load_analyzers_once, within_budget

__all__ = ["Block", "Judges", "Result"]

PATIENCE = 900.0
"""Seconds for one block of inputs; what sleeps for ever takes no processor time."""
_LIFE = 50_000
"""Inputs after which a process is replaced, so that what it has cached is given back."""
_COLLECT_EVERY = 500
_SEED = struct.Struct("<q")


@dataclass(frozen=True)
class Block:
    """Inputs of one surface that are judged together."""

    surface: str
    seeds: tuple[int, ...]


@dataclass
class Result:
    """Outcome of a block.

    Attributes:
        counts: Inputs by kind of answer.
        failures: Answers that must not be, by seed.
        seconds: Processor time.
    """

    counts: Counter[str] = field(default_factory=Counter)
    failures: dict[int, Answer] = field(default_factory=dict)
    seconds: float = 0.0


class Judges:
    """Judge inputs in processes of their own.

    Args:
        surfaces: By name.
    """

    def __init__(self, surfaces: Mapping[str, Surface]) -> None:
        self._surfaces = surfaces
        self._progress = mmap.mmap(-1, _SEED.size)
        self._process: _Process | None = None
        self.deaths = 0

    def judge(self, block: Block) -> Result:
        """Judge a block."""
        result = Result()
        seeds = list(block.seeds)
        suspects: list[int] = []
        while seeds:
            if self._process is None or self._process.judged > _LIFE:
                self.close()
                self._process = _Process(self._serve)
            done = self._process.ask(Block(block.surface, tuple(seeds)))
            if isinstance(done, Result):
                result.counts += done.counts
                result.seconds += done.seconds
                suspects += done.failures
                break
            self.deaths += 1
            self._process = None
            (culprit,) = _SEED.unpack(self._progress)
            if culprit not in seeds:
                raise RuntimeError("a judging process died before its first input")
            suspects.append(culprit)
            seeds.remove(culprit)
        for seed in suspects:
            answer = self.judge_alone(block.surface, seed)
            if not answer.failed:
                answer = Answer("error", f"fails after other inputs only; alone: {answer.kind}")
            result.failures[seed] = answer
            result.counts[answer.kind] += 1
        return result

    def judge_alone(self, surface: str, seed: int) -> Answer:
        """Judge one input in a process of its own."""

        def serve(_: Block) -> Result:
            limit_space()
            made = self._surfaces[surface]
            answer = within_budget(made.judge, made.make(seed), seed)
            return Result(failures={seed: answer})

        process = _Process(serve)
        done = process.ask(Block(surface, (seed,)))
        process.close()
        return done.failures[seed] if isinstance(done, Result) else done

    def close(self) -> None:
        """End the process that judges."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _serve(self, block: Block) -> Result:
        """Judge a block; runs in the process that judges."""
        made = self._surfaces[block.surface]
        result = Result()
        began = os.times()
        for number, seed in enumerate(block.seeds):
            _SEED.pack_into(self._progress, 0, seed)
            answer = within_budget(made.judge, made.make(seed), seed)
            if answer.failed:
                result.failures[seed] = answer
            else:
                result.counts[answer.kind] += 1
            if not (number + 1) % _COLLECT_EVERY:
                gc.collect()
        ended = os.times()
        result.seconds = ended.user - began.user + ended.system - began.system
        return result


class _Process:
    """A child that answers requests until it is closed, or dies."""

    def __init__(self, serve: Callable[[Block], Result]) -> None:
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        self.judged = 0
        self._pid = os.fork()
        if self._pid == 0:
            status = 1
            try:
                os.close(self._requests)
                os.close(self._answers)
                _serve_all(serve, requests, answers)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(requests)
        os.close(answers)

    def ask(self, block: Block) -> Result | Answer:
        """Return the outcome of a block, or how the child died over it."""
        _send(self._requests, block)
        self.judged += len(block.seeds)
        ready, _, _ = select.select([self._answers], [], [], PATIENCE)
        if not ready:
            os.kill(self._pid, signal.SIGKILL)
        found = _receive(self._answers) if ready else None
        if found is not None:
            return found  # type: ignore[no-any-return]
        os.close(self._requests)
        os.close(self._answers)
        _, status = os.waitpid(self._pid, 0)
        if not ready:
            return Answer("too slow", f"no answer within {PATIENCE:g} s")
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if number == signal.SIGPROF:
            return Answer("too slow", "its processor time is up")
        return Answer("killed", f"signal {number}" if number else f"status {status}")

    def close(self) -> None:
        """End the child, unless it has died."""
        try:
            os.close(self._requests)
        except OSError:
            return
        os.close(self._answers)
        os.waitpid(self._pid, 0)


def _serve_all(serve: Callable[[Block], Result], requests: int, answers: int) -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    load_analyzers_once()
    gc.collect()
    gc.freeze()
    limit_space()
    while (block := _receive(requests)) is not None:
        _send(answers, serve(block))


def _send(descriptor: int, value: Any) -> None:
    data = pickle.dumps(value)
    data = len(data).to_bytes(8, "little") + data
    while data:
        data = data[os.write(descriptor, data) :]


def _receive(descriptor: int) -> Any:
    """Return the next value; None at the end."""
    head = _read(descriptor, 8)
    return pickle.loads(_read(descriptor, int.from_bytes(head, "little"))) if head else None


def _read(descriptor: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = os.read(descriptor, min(size, 1 << 16))
        if not part:
            return b""
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def blocks(surfaces: Mapping[str, Surface], first: int, count: int, size: int) -> Iterable[Block]:
    """Yield blocks of inputs, the surfaces in turn.

    Args:
        surfaces: By name.
        first: The first seed of each.
        count: Inputs of all surfaces together.
        size: Inputs of a block.
    """
    turns = [name for name, surface in surfaces.items() for _ in range(surface.weight)]
    shares = dict.fromkeys(surfaces, 0)
    for place, name in enumerate(turns):
        shares[name] += len(range(place, count, len(turns)))
    for start in range(0, max(shares.values()), size):
        for name, share in shares.items():
            seeds = tuple(range(first + start, first + min(start + size, share)))
            if seeds:
                yield Block(name, seeds)
