"""Two vLLM workers under bursts and pauses, traced, guarded and watched, for hours.

A healthy server must raise no alarm, answer as an untraced one, and not grow. In the end one
worker is made to diverge, so that the silence before is known to be that of an alarm that works.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from tests.campaign.directory import in_memory
from tests.campaign.memory import MemoryLog
from tests.integration.traced_server import TracedServer
from tests.integration.vllm_server import VOCABULARY_SIZE, VllmServer

__all__ = ["soak"]

NCCLSCOPE = [sys.executable, "-m", "ncclscope"]
TROUBLE = {"diverged", "hung"}
FIXED = ([1, 2, 3, 4, 5], [7, 300, 12], list(range(20, 90)), list(range(400, 250, -1)))
FIXED_TOKENS = 12
LARGEST_BURST = 8
PAUSE_SECONDS = 20.0
"""Mean pause between bursts. Some are longer than the time after which `watch` reports a hang."""
LONGEST_PAUSE = 120.0
SERVER: dict[str, Any] = {
    "checkpoint": True,
    # Blocks are used in turn: of the usual 8,192 new ones would be touched for hours.
    "arguments": ("--num-gpu-blocks-override", "64"),
    # A fork shares what its parent has imported: its memory would not be what a user's worker has.
    "forks": False,
}
ENVIRONMENT = {
    # oneDNN keeps 1,024 kernels, one for each number of tokens that a step happens to have.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32",
}
TRACED = {
    "NCCLSCOPE_GUARD": "warn",
    # A ring is full, and all its pages are in memory, before the warm-up is over.
    "NCCLSCOPE_RECORDS": "1024",
}
SAMPLE_SECONDS = 20.0
PROGRESS_SECONDS = 600.0
WARM_UP_BURSTS = 40
"""Bursts without pauses before memory is sampled. In the first 30 a worker takes 50 MB, traced or
not: kernels for numbers of tokens that it has not met, blocks of the KV cache, arenas."""
SETTLING = 0.1
"""Part of the run whose samples are not used either."""
SHORTEST_JUDGED = 300.0
"""Seconds of a run whose growth is judged; in less there is no line to be fitted."""
GROWTH_KIB = 2048.0
"""Growth that fails a run, in KiB per hour; in a run of less than an hour, in all.

At the 50,000 calls that a worker records in an hour it is 43 bytes a call, less than the smallest
tuple (56 bytes): a program that lost one object per call would grow faster. The allocator takes and
gives back a MiB at a time, which in a run of some minutes looks like growth.
"""

Asked = tuple[int, list[int], int]
"""Number of a fixed prompt or -1, the prompt, and how many tokens to generate."""


@dataclass
class _Traffic:
    """What both servers were asked, and how they answered."""

    draw: random.Random
    bursts: int = 0
    requests: int = 0
    tokens: int = 0
    """Compared, of fixed prompts."""
    others: int = 0
    """Other answers that differ. Two tokens may be as likely but for the last bits of a sum, and
    those depend on what else is in the step."""
    problems: list[str] = field(default_factory=list)

    def burst(self, traced: VllmServer, untraced: VllmServer) -> None:
        """Send 1 to 8 requests at once, to one server and then to the other; compare answers."""
        asked = self._draw()
        try:
            answers = zip(asked, _answers(traced, asked), _answers(untraced, asked), strict=True)
            for (number, _, _), tokens, expected in answers:
                if number < 0:
                    self.others += tokens != expected
                    continue
                self.tokens += len(tokens)
                if tokens != expected:
                    self.problems.append(f"prompt {number}: {tokens} instead of {expected}")
        except (OSError, RuntimeError) as error:
            self.problems.append(f"a request failed: {error!r}")
        self.bursts += 1
        self.requests += len(asked)

    def pause(self) -> float:
        """Return the length of the next pause in seconds."""
        return min(LONGEST_PAUSE, self.draw.expovariate(1 / PAUSE_SECONDS))

    def _draw(self) -> list[Asked]:
        fixed = self.draw.sample(range(len(FIXED)), self.draw.randint(1, 2))
        asked: list[Asked] = [(number, FIXED[number], FIXED_TOKENS) for number in fixed]
        for _ in range(self.draw.randint(0, LARGEST_BURST - len(asked))):
            length = self.draw.randint(1, 200)
            prompt = [self.draw.randrange(3, VOCABULARY_SIZE) for _ in range(length)]
            asked.append((-1, prompt, self.draw.randint(1, 40)))
        self.draw.shuffle(asked)
        return asked


def _answers(server: VllmServer, asked: list[Asked]) -> list[list[int]]:
    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(lambda each: server.complete(each[1], each[2], 120.0), asked))


class _Until:
    """The end of the run: its time, or SIGTERM or Ctrl-C before that."""

    def __init__(self) -> None:
        self.deadline = float("inf")
        self.cut_short = False

    @property
    def reached(self) -> bool:
        return self.cut_short or time.monotonic() >= self.deadline

    def sleep(self, seconds: float) -> None:
        """Sleep, but not beyond the end."""
        awake = min(self.deadline, time.monotonic() + seconds)
        while not self.cut_short and (left := awake - time.monotonic()) > 0:
            time.sleep(min(0.5, left))

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Let SIGTERM and SIGINT cut the run short instead of ending the process."""

        def cut(_number: int, _frame: FrameType | None) -> None:
            self.cut_short = True

        usual = {number: signal.signal(number, cut) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in usual.items():
                signal.signal(number, handler)


def soak(minutes: float, seed: int, document: Path | None = None) -> tuple[int, str]:
    """Serve bursts of requests for a time, with pauses between them.

    Args:
        minutes: How long; SIGTERM ends it earlier, with the summary of what it came to.
        seed: Of the bursts and pauses.
        document: A JSON file for samples and summary.
    """
    until, traffic = _Until(), _Traffic(random.Random(seed))
    with until.signals(), in_memory() as rings, tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for each in ("traced", "untraced"):
            (directory / each).mkdir()
        untraced = VllmServer(directory / "untraced", environment=ENVIRONMENT, **SERVER)
        traced = TracedServer(
            directory / "traced", rings=rings, environment=ENVIRONMENT | TRACED, **SERVER
        )
        with untraced, _watch(rings, directory) as watch, traced.server:
            pids = {"watch": watch.pid, **_pids(traced.server)}
            pids |= {f"untraced {name}": pid for name, pid in _pids(untraced).items()}
            for _ in range(min(WARM_UP_BURSTS, 1 + int(minutes * 20))):
                if not until.cut_short and not traffic.problems:
                    traffic.burst(traced.server, untraced)
            until.deadline = time.monotonic() + minutes * 60
            busy = _processor_seconds()
            with MemoryLog(pids, min(SAMPLE_SECONDS, minutes * 60 / 12)) as log:
                shown = time.monotonic()
                while not until.reached and not traffic.problems:
                    traffic.burst(traced.server, untraced)
                    until.sleep(traffic.pause())
                    if time.monotonic() - shown >= PROGRESS_SECONDS:
                        shown += PROGRESS_SECONDS
                        print(f"{time.ctime()}: {traffic.bursts} bursts", flush=True)
                        _write(document, {"samples": log.samples})
            _write(document, {"samples": log.samples})
            cut = ", cut short" if until.cut_short else ""
            busy = _processor_seconds() - busy
            problems = traffic.problems + _alarms(directory, traced, watch)
            recorded = _recorded_calls(traced)
            problems += _unreported(traced, directory)
            traced.server.kill()  # one worker hangs, and would not end when asked
    trends = log.trends(SETTLING * log.seconds)
    limit = GROWTH_KIB / min(60.0, log.seconds / 60)
    for name, trend in trends.items():
        print(f"{name}: {trend}")
        # What vLLM does by itself, its untraced twin does too.
        own = name == "watch" or "less untraced" in name
        judged = own and log.seconds >= SHORTEST_JUDGED
        if judged and trend.slope > limit and trend.slope > 2 * trend.error:
            problems.append(f"{name} grows by more than {limit:.1f} KiB/min")
    print("".join(f"{problem}\n" for problem in problems), end="")
    summary = (
        f"{log.seconds / 60:.1f} minutes{cut}, "
        f"{traffic.bursts} bursts, {traffic.requests} requests, {recorded} calls recorded, "
        f"{traffic.tokens} tokens compared ({traffic.others} other answers differ), "
        f"{busy / log.seconds:.0%} of a core; {len(problems)} problems"
    )
    facts = {
        "summary": summary,
        "problems": problems,
        "seed": seed,
        "trends": {name: asdict(trend) for name, trend in trends.items()},
    }
    _write(document, facts | {"samples": log.samples})
    return len(problems), summary


def _write(document: Path | None, facts: dict[str, Any]) -> None:
    if document is not None:
        document.write_text(json.dumps(facts, indent=1) + "\n")


def _pids(server: VllmServer) -> dict[str, int]:
    workers = {f"worker {rank}": pid for rank, pid in enumerate(server.worker_pids())}
    return {"engine": server.engine_pid(), **workers}


@contextmanager
def _watch(rings: Path, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `ncclscope watch` as its page describes it; its output goes to files of the directory."""
    hangs = f"echo hang >> {directory / 'hangs.txt'}"
    options = ["--json", "--on-hang", hangs, "--textfile", str(directory / "watch.prom")]
    with (directory / "watch.jsonl").open("wb") as out, (directory / "watch.txt").open("wb") as err:
        watch = subprocess.Popen(
            [*NCCLSCOPE, "watch", str(rings), *options],
            stdout=out,
            stderr=err,
            start_new_session=True,  # Ctrl-C ends the soak, which then asks what watch has seen
        )
        try:
            yield watch
        finally:
            watch.kill()
            watch.wait()


def _alarms(directory: Path, traced: TracedServer, watch: subprocess.Popen[bytes]) -> list[str]:
    """Return all that watch, guard and `diagnose` say against a healthy server."""
    alarms = [f"watch: {status}" for status in _statuses(directory) if status in TROUBLE]
    if watch.poll() is not None:
        alarms.append(f"watch ended with status {watch.returncode}")
    alarms += [f"watch: {line}" for line in (directory / "watch.txt").read_text().splitlines()]
    if (directory / "hangs.txt").exists():
        alarms.append("watch ran the command of --on-hang")
    alarms += [f"guard: {line}" for line in _warnings(traced)]
    status, found = traced.diagnose()
    if (status, found["status"]) != (0, "ok"):
        alarms.append(f"diagnose: {found['status']}, {found['summary']}")
    return alarms


def _statuses(directory: Path) -> list[str]:
    lines = (directory / "watch.jsonl").read_text().split("\n")[:-1]
    return [json.loads(line)["status"] for line in lines]


def _warnings(traced: TracedServer) -> list[str]:
    """Return ncclscope's lines in the server's log, without the place of the rings."""
    log = traced.server.log_path.read_text(errors="replace").splitlines()
    return [line for line in log if "ncclscope" in line and "rings go to" not in line]


def _unreported(traced: TracedServer, directory: Path) -> list[str]:
    """Make one worker diverge, twice; return what guard and watch should have reported and did not.

    The first divergence hurts nobody: the guard warns, and the job goes on. At the second it
    hangs, which `watch` reports.
    """
    with suppress(OSError, RuntimeError):
        traced.plant("replace")
        traced.server.complete(FIXED[0], FIXED_TOKENS)
        traced.plant("skip")
        traced.server.complete(FIXED[0], FIXED_TOKENS, timeout=10.0)
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        watched, guarded = TROUBLE & set(_statuses(directory)), _warnings(traced)
        if watched and guarded:
            return []
        time.sleep(0.2)
    silent = [who for who, reported in (("watch", watched), ("guard", guarded)) if not reported]
    return [f"{who} did not report the planted divergence" for who in silent]


def _recorded_calls(traced: TracedServer) -> int:
    rows: list[dict[str, Any]] = traced.diagnose()[1]["table"]
    return sum(comm["calls"] for row in rows for comm in row["comms"].values())


def _processor_seconds() -> float:
    """Return the processor time of all living processes that this one has started."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total
