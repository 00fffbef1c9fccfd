"""Healthy vLLM servers under `ncclscope watch`, for hours in sum: nothing may be said to hang.

    python -m benchmarks.gpu.healthy_hours --servers 16 --seconds 900 --keep DIR --json FILE

Servers of several kinds start shortly after one another and are up at once. Each is traced, and
has a watch beside it from before its start. What a server has to do looks odd and is healthy:
bursts, pauses of up to a minute, more requests than there are places, prompts longer than a step,
clients that hang up, POST /pause and /sleep. Without GPUs vLLM's CPU build runs, one kind of it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.gpu.deployment import Shape, in_shared_memory, on_gpus, options
from tests.services.ask import diagnose
from tests.services.service import Service

NCCLSCOPE = [sys.executable, "-m", "ncclscope"]
TROUBLE = ("diverged", "hung")
BETWEEN_STARTS = 2.0
"""Seconds from the start of one server to that of the next."""
START = 420.0
"""Seconds until a server is healthy, at most: many that start at once share the cores."""
PATIENCE = 300.0
"""Seconds after which an answer is not waited for any longer: servers share the GPUs."""
ENDING = 20.0
"""Seconds that requests have to be answered in at the end."""
UNPLANTED = {"NCCLSCOPE_TEST_FAULT": "", "NCCLSCOPE_TEST_FAULTS": ""}
LONG = (700, 1900) if on_gpus() else (150, 240)
"""Tokens of a long prompt."""
STEP = 512 if on_gpus() else 64
"""Tokens that a step has room for."""
ANSWER = (8, 64)
CROWD = 48 if on_gpus() else 20
"""Requests at once: more than the 32 and 8 that run at a time."""
PAUSES = (0.5, 0.5, 1.0, 3.0, 12.0, 25.0, 40.0)
OWN_LINE = re.compile(r"(^|\) )ncclscope\b")
"""In a server's log, where vLLM puts the process before what others print."""


@dataclass(frozen=True)
class Kind:
    """What several servers have in common.

    Attributes:
        name: For the reader.
        shape: Tensor-parallel and data-parallel size.
        eager: Without torch.compile and CUDA graphs.
        arguments: Further ones.
        sleep: Level of its sleep: 0 rests only, 1 takes the weights off the GPU as well.
    """

    name: str
    shape: Shape
    eager: bool
    arguments: tuple[str, ...] = ()
    sleep: int = 0


DEEP = ("--enable-sleep-mode",)
STAGES = ("--pipeline-parallel-size", "2")
KINDS = (
    [
        Kind("TP=2, default", (2, 1), eager=False),
        Kind("DP=2 with experts, eager", (1, 2), eager=True),
        Kind("one GPU, default", (1, 1), eager=False, arguments=DEEP, sleep=1),
        Kind("TP=2, eager", (2, 1), eager=True, arguments=DEEP, sleep=1),
        Kind("DP=2 with experts, default", (1, 2), eager=False),
        Kind("one GPU, eager", (1, 1), eager=True),
        Kind("PP=2, default", (1, 1), eager=False, arguments=STAGES),
        Kind("TP=2, default, asynchronous", (2, 1), eager=False, arguments=("--async-scheduling",)),
    ]
    if on_gpus()
    else [Kind("TP=2, eager, CPU", (2, 1), eager=True, sleep=1)]
)


@dataclass
class Load:
    """What clients do to a server, one thing after the other.

    Attributes:
        service: Whose server it is.
        level: How deep it sleeps.
        draw: Chooses all of it.
        over: Set at the end.
        acts: How often each thing was done.
        requests: How many were answered.
        tokens: How many were received.
        left: Requests that their clients did not wait for.
        errors: What went wrong; none of it should.
    """

    service: Service
    level: int
    draw: random.Random
    over: threading.Event
    acts: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    tokens: int = 0
    left: int = 0
    errors: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        """Go on until it is over; the first thing is a burst."""
        waiting: list[Callable[[], None]] = [self.burst]
        while not self.over.is_set():
            if not waiting:
                every = [
                    *(self.burst, self.crowd, self.steady, self.long_prompts, self.hang_up),
                    *(self.disconnect, self.pause, self.sleep, self.idle),
                ]
                waiting = self.draw.sample(every, len(every))
            act = waiting.pop()
            self.acts[act.__name__] += 1
            try:
                act()
            except (OSError, RuntimeError, ValueError) as error:
                self._note(f"{act.__name__}: {error!r}")
            self.over.wait(self.draw.choice(PAUSES))

    def burst(self) -> None:
        """Send up to a dozen short requests at once."""
        self._at_once(self.draw.randint(1, 12))

    def crowd(self) -> None:
        """Send more requests than run at a time."""
        self._at_once(CROWD)

    def steady(self) -> None:
        """Let six clients send one request after the other for ten seconds."""
        end = time.monotonic() + 10.0

        def client(seed: int) -> None:
            draw = random.Random(seed)
            while time.monotonic() < end and not self.over.is_set():
                self._ask(_prompt(draw, 3, 90), draw.randint(*ANSWER))

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(client, [self.draw.randrange(1 << 30) for _ in range(6)]))

    def long_prompts(self) -> None:
        """Send four prompts that take several steps each."""
        self._at_once(4, LONG)

    def hang_up(self) -> None:
        """Let clients go in the middle of their streams."""

        def client(prompt: list[int]) -> None:
            stream = self.service.server.stream(prompt, 200, PATIENCE)
            for _, chunk in zip(range(5), stream, strict=False):
                self._count(tokens=len(chunk.get("token_ids") or ()))
            self._count(left=1)

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(client, [_prompt(self.draw, 3, 90) for _ in range(6)]))

    def disconnect(self) -> None:
        """Let clients go without having read anything."""

        def client(prompt: list[int]) -> None:
            for _ in range(3):
                with contextlib.suppress(OSError):
                    self.service.server.complete(prompt, 150, timeout=0.2)
                self._count(left=1)

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(client, [_prompt(self.draw, 3, 90) for _ in range(6)]))

    def pause(self) -> None:
        """Pause the engine while requests run, have one come meanwhile, and resume it."""
        how = self.draw.choice(["keep", "wait"])
        self._rest(f"/pause?mode={how}", "/resume")

    def sleep(self) -> None:
        """The same by sleep, which ends the requests that run."""
        self._rest(f"/sleep?level={self.level}", "/wake_up")

    def idle(self) -> None:
        """Leave the server alone for a minute."""
        self.over.wait(60.0)

    def _rest(self, begin: str, end: str) -> None:
        with ThreadPoolExecutor(4) as pool:
            running = [pool.submit(self._ask, _prompt(self.draw, 3, 90), 64) for _ in range(3)]
            time.sleep(0.2)
            self.service.posted(begin, timeout=PATIENCE)
            try:
                running.append(pool.submit(self._ask, _prompt(self.draw, 3, 90), 16))
                self.over.wait(self.draw.uniform(12.0, 30.0))
            finally:
                self.service.posted(end, timeout=PATIENCE)
            for each in running:
                each.result()

    def _at_once(self, count: int, lengths: tuple[int, int] = (3, 90)) -> None:
        asked = [(_prompt(self.draw, *lengths), self.draw.randint(*ANSWER)) for _ in range(count)]
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda each: self._ask(*each), asked))

    def _ask(self, prompt: list[int], tokens: int) -> None:
        choice = self.service.server.choice(prompt, tokens, PATIENCE)
        self._count(requests=1, tokens=len(choice.get("token_ids") or ()))

    def _count(self, requests: int = 0, tokens: int = 0, left: int = 0) -> None:
        with self._lock:
            self.requests += requests
            self.tokens += tokens
            self.left += left

    def _note(self, error: str) -> None:
        if not self.over.is_set():  # at the end nobody waits
            self.errors.append(f"{time.strftime('%H:%M:%S')} {error}"[:600])


def _prompt(draw: random.Random, shortest: int, longest: int) -> list[int]:
    return [draw.randrange(3, 500) for _ in range(draw.randint(shortest, longest))]


class Watch:
    """`ncclscope watch` beside a server; what it says goes to files.

    Args:
        rings: What it watches.
        keep: A new folder for its files, and a bundle for each alarm.
    """

    def __init__(self, rings: Path, keep: Path) -> None:
        keep.mkdir(parents=True)
        self._keep = keep
        self._metrics = keep / "watch.prom"
        words = ["--json", "--bundle", str(keep / "bundles"), "--textfile", str(self._metrics)]
        with (keep / "watch.jsonl").open("wb") as out, (keep / "watch.txt").open("wb") as said:
            self._process = subprocess.Popen(
                [*NCCLSCOPE, "watch", str(rings), *words],
                stdout=out,
                stderr=said,
                start_new_session=True,
            )
        self._psutil = psutil.Process(self._process.pid)

    def documents(self) -> list[dict[str, Any]]:
        """Return what it has said, whole lines only."""
        lines = (self._keep / "watch.jsonl").read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def alarms(self) -> list[str]:
        """Return the divergences and hangs that it has reported."""
        return [
            f"{one['status']}: {one['summary']}"
            for one in self.documents()
            if one["status"] in TROUBLE
        ]

    def row(self) -> dict[str, Any]:
        """Return what counts of all that, while it runs."""
        found = self.documents()
        alarms = self.alarms()
        troubles = int(self._sum("ncclscope_troubles_total"))
        if troubles != len(alarms):
            alarms.append(f"{troubles} by the count of watch itself")
        seconds = 0.0
        with contextlib.suppress(psutil.Error):
            times = self._psutil.cpu_times()
            seconds = times.user + times.system
        return {
            "alarms": alarms,
            "statuses": dict(Counter(one["status"] for one in found)),
            "last_status": found[-1]["status"] if found else None,
            "last_summary": found[-1]["summary"] if found else None,
            "calls": int(
                self._sum("ncclscope_calls_total") + self._sum("ncclscope_p2p_calls_total")
            ),
            "watch_processor_seconds": round(seconds, 1),
            "watch_said": [line for line in self._said() if "bundle: " not in line][:5],
            "watch_ended": self._process.poll(),
        }

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def _said(self) -> list[str]:
        return (self._keep / "watch.txt").read_text().splitlines()

    def _sum(self, metric: str) -> float:
        if not self._metrics.exists():
            return 0.0
        text = self._metrics.read_text()
        return sum(map(float, re.findall(rf"^{metric}(?:{{.*}})? (\S+)$", text, re.MULTILINE)))


class Watched:
    """One server with its watch and its load.

    Args:
        number: Which.
        directory: Where its rings go.
        keep: For what is kept.
        over: Set at the end of all.
    """

    def __init__(self, number: int, directory: Path, keep: Path, over: threading.Event) -> None:
        self.number = number
        self.kind = KINDS[number % len(KINDS)]
        self._directory = directory
        self._keep = keep
        self._over = over
        self.attempts = 0
        self.healthy_at: float | None = None
        self.started_at = 0.0
        self.failures: list[str] = []
        self.load: Load | None = None
        self.watch: Watch | None = None
        self._row: dict[str, Any] | None = None

    def run(self) -> None:
        """Start it, twice if need be, and load it until it is over."""
        self._over.wait(self.number * BETWEEN_STARTS)
        while not self._over.is_set() and self.attempts < 2 and self.healthy_at is None:
            self._start()
        if self.load is not None:
            self.load.run()

    def row(self) -> dict[str, Any]:
        """Return all that is known of it."""
        row: dict[str, Any] = {"server": self.number, "kind": self.kind.name}
        row |= {"attempts": self.attempts, "not_started": self.failures}
        if self.watch is not None:
            row |= self.watch.row()
        if self.load is not None and self.healthy_at is not None:
            now = time.monotonic()
            row |= {
                "healthy_after": round(self.healthy_at - self.started_at, 1),
                "healthy_seconds": round(now - self.healthy_at, 1),
                "watched_seconds": round(now - self.started_at, 1),
                "requests": self.load.requests,
                "tokens": self.load.tokens,
                "left": self.load.left,
                "acts": dict(self.load.acts),
                "errors": self.load.errors[:10],
            }
        return row

    def finish(self) -> dict[str, Any]:
        """Ask once more, end all of it, and return its row; its log is kept where it is odd."""
        row = self.row()
        if self.load is not None:
            document = diagnose(self.load.service, "diagnose").document or {}
            row["diagnose"] = document.get("status")
            row["diagnose_says"] = document.get("summary")
            log = self.load.service.server.log_path.read_text(errors="replace")
            row["said_in_log"] = [
                line
                for line in log.splitlines()
                if OWN_LINE.search(line) and "rings go" not in line
            ][:5]
            if row["alarms"] or row["errors"] or row["diagnose"] != "ok":
                self._keep_log()
                rings = self._keep / f"{self.number}-rings"
                shutil.copytree(self.load.service.rings, rings, dirs_exist_ok=True)
        self.kill()
        return row

    def kill(self) -> None:
        """End whatever runs."""
        if self.watch is not None:
            self.watch.end()
        if self.load is not None:
            self.load.service.server.kill()

    def _start(self) -> None:
        self.attempts += 1
        name = f"{self.number}-{self.attempts}"
        own = self._directory / name
        own.mkdir(parents=True)
        service = self._service(own, self._keep / "caches" / name)
        self.watch = Watch(service.rings, self._keep / name)
        self.started_at = time.monotonic()
        try:
            service.server.start(START)
        except (RuntimeError, TimeoutError) as error:
            self.watch.end()
            self.failures.append(str(error)[-3000:])
            shutil.copy(service.server.log_path, self._keep / f"{name}.log")
            return
        self.healthy_at = time.monotonic()
        draw = random.Random(self.number)
        self.load = Load(service, self.kind.sleep, draw, self._over)

    def _service(self, directory: Path, caches: Path) -> Service:
        given = options(eager=self.kind.eager, shape=self.kind.shape, memory=0.05)
        alone = self.kind.shape == (1, 1) and self.kind.arguments != STAGES
        gpu = {"CUDA_VISIBLE_DEVICES": str(self.number // 2 % 2)} if alone else {}
        own = {"OMP_NUM_THREADS": "1", **gpu} if on_gpus() else {}
        environment = {
            **given.pop("environment"),
            **own,
            **UNPLANTED,
            "VLLM_CACHE_ROOT": str(caches),
        }
        cache = ("--kv-cache-memory-bytes", str(256 << 20)) if on_gpus() else ()
        given["arguments"] = [
            *given["arguments"],
            *cache,
            *("--max-num-batched-tokens", str(STEP)),
            *self.kind.arguments,
        ]
        return Service(directory, traced=True, options=given, environment=environment)

    def _keep_log(self) -> None:
        if self.load is not None:
            log = self.load.service.server.log_path
            shutil.copy(log, self._keep / f"{self.number}-server.log")


def summed(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums over all servers."""
    found: dict[str, Any] = {
        key: round(sum(row.get(key, 0) for row in rows), 1)
        for key in (
            *("healthy_seconds", "watched_seconds", "calls", "requests", "tokens", "left"),
            "watch_processor_seconds",
        )
    }
    found["alarms"] = sum(len(row.get("alarms", ())) for row in rows)
    found["errors"] = sum(len(row.get("errors", ())) for row in rows)
    found["servers"] = sum("healthy_seconds" in row for row in rows)
    found["last_statuses"] = dict(Counter(row.get("last_status") for row in rows))
    acts: Counter[str] = Counter()
    for row in rows:
        acts.update(row.get("acts", {}))
    found["acts"] = dict(acts)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Start, load, ask, print; return 1 where there is an alarm."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.gpu.healthy_hours",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--servers", type=int, default=len(KINDS), help="how many (default: each)")
    parser.add_argument("--seconds", type=float, default=600.0, help="in all, the starts included")
    parser.add_argument("--keep", type=Path, required=True, metavar="DIR", help="for evidence")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    over = threading.Event()
    with in_shared_memory() as directory:
        watched = [Watched(n, directory, given.keep, over) for n in range(given.servers)]
        threads = [threading.Thread(target=each.run, daemon=True) for each in watched]
        for thread in threads:
            thread.start()
        rows: list[dict[str, Any]] = []
        try:
            while (left := began + given.seconds - time.monotonic()) > 0:
                time.sleep(min(30.0, left))
                rows = [each.row() for each in watched]
                load = os.getloadavg()[0]
                print(
                    json.dumps(
                        {"after": round(time.monotonic() - began), "load": load, **summed(rows)}
                    ),
                    flush=True,
                )
                _write(given.json, rows, given)
            over.set()
            end = time.monotonic() + ENDING
            for thread in threads:
                thread.join(max(0.0, end - time.monotonic()))
            with ThreadPoolExecutor(8) as pool:
                rows = list(pool.map(Watched.finish, watched))
        finally:
            over.set()
            for each in watched:
                each.kill()
    _write(given.json, rows, given)
    print(json.dumps({"in all": round(time.monotonic() - began), **summed(rows)}))
    for row in rows:
        for alarm in row.get("alarms", ()):
            print(f"{row['server']} {row['kind']}: {alarm}")
    return int(any(row.get("alarms") for row in rows))


def _write(path: Path | None, rows: Sequence[dict[str, Any]], given: argparse.Namespace) -> None:
    if path is not None:
        found = {"seconds": given.seconds, "sum": summed(rows), "servers": rows}
        path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
