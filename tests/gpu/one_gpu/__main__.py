"""Run programs with one faulty rank, four NCCL ranks on one GPU, and judge what is said of them.

    python -m tests.gpu.one_gpu --nccl /tmp/libnccl.so.2 --keep DIR --part 1/2 [NAME[:BAD] ...]
    python -m tests.gpu.one_gpu --gloo --jobs 1 --bad 1 --keep DIR
    python -m tests.gpu.one_gpu --again DIR

Each program runs traced with rank 1, 0 and 3 at fault, then healthy. While it hangs, `attach` is
asked; after SIGKILL `diagnose` is. DIR gets `table.md`, `answers.jsonl` and `runs-N.tar` with the
rings, the answers and the output of each run. `--again` diagnoses kept rings with the present code.
NCCL has to be 2.31 or newer; it is preloaded into the programs alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ncclscope.launch.rank_process import free_port
from tests.corpus.runner.job import ENDED, MOVING, STILL, Job, running
from tests.gpu.one_gpu.archive import Archive, unpack
from tests.gpu.one_gpu.judgement import judge, say, summary
from tests.gpu.one_gpu.truth import MISTAKES, Mistake

FAULTY = (1, 0, 3)
HEALTHY = "healthy"
HEADER = "| program | bad | job | attach | | diagnose | | RAS | recorded / counted | s |"
_STILL, _MOVES, _ANSWER = 10.0, 75.0, 60.0
"""Seconds without a record after which a job hangs, of a job that moves, and for one answer."""
_RESERVE = 75.0
"""Seconds that a run takes: none is begun later than that before the limit."""
_PAST = 7
"""Records of each rank before a job that starts slowly can be taken for one that hangs."""


@dataclass
class Run:
    """One run of a program and what was said of it.

    Attributes:
        program: Its name.
        bad: The faulty rank; None for a healthy run.
        job: `STILL`, `ENDED` with the exit status, or `MOVING`.
        attach: What `attach` answered, None where nothing could be asked.
        diagnose: The same for `diagnose`.
        judged: How good each answer is.
        seconds: For how long it took.
    """

    program: str
    bad: int | None
    job: str = ""
    attach: dict[str, Any] | None = None
    diagnose: dict[str, Any] | None = None
    judged: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.program}-{HEALTHY if self.bad is None else self.bad}"

    @property
    def mistake(self) -> Mistake:
        return MISTAKES[self.program]

    def judge(self) -> None:
        """Judge the answers; `attach` counts where the job could be asked."""
        self.judged = {"diagnose": judge(self.diagnose, self.mistake, self.bad)}
        if self.bad is not None and not self.job.startswith(ENDED):
            self.judged["attach"] = judge(self.attach, self.mistake, self.bad)

    def row(self) -> str:
        """Return its row of the table."""
        best = self.attach or self.diagnose or {}
        comms = (best.get("coverage") or {}).get("comms") or ()
        bad = HEALTHY if self.bad is None else str(self.bad)
        cells = [self.program, bad, self.job]
        for way, document in (("attach", self.attach), ("diagnose", self.diagnose)):
            said = say(document, self.mistake)
            cells += [said.replace("|", "/"), self.judged.get(way, "")]
        cells += [
            _ras(self.attach),
            ", ".join(f"{one.get('recorded')}/{one.get('counted')}" for one in comms),
            f"{self.seconds:.0f}",
        ]
        return f"| {' | '.join(cells)} |"


def _ras(document: dict[str, Any] | None) -> str:
    for item in (document or {}).get("witnesses") or ():
        if item.get("name") == "ras":
            return " ".join(str(item.get("says") or item.get("why") or "").split())[:90]
    return ""


@dataclass
class Session:
    """What all runs share.

    Attributes:
        nccl: Library to preload; empty for gloo.
        keep: Directory for what is kept.
        end: Monotonic time at which all has to be over.
    """

    nccl: str
    keep: Path
    end: float

    def __post_init__(self) -> None:
        self.keep.mkdir(parents=True, exist_ok=True)
        self.archive = Archive(self.keep, "runs")
        self.lock = threading.Lock()
        self.runs: list[Run] = []
        self.left_out: list[Run] = []

    def run(self, run: Run) -> None:
        """Run one program, ask, judge, and keep everything; leave it out where time is short."""
        began = time.monotonic()
        if began + _RESERVE > self.end:
            self.left_out.append(run)
            return
        with tempfile.TemporaryDirectory(prefix="one-gpu-") as scratch:
            try:
                self._ask(run, Path(scratch))
            except (OSError, subprocess.SubprocessError) as error:
                run.job = f"failed: {error}"
            run.seconds = time.monotonic() - began
            run.judge()
            with self.lock:
                self.runs.append(run)
                print(run.row(), flush=True)
                with (self.keep / "table.md").open("a") as table:
                    table.write(f"{run.row()}\n")
                with (self.keep / "answers.jsonl").open("a") as answers:
                    answers.write(json.dumps(asdict(run)) + "\n")

    def _ask(self, run: Run, folder: Path) -> None:
        variables = {
            "BAD": "" if run.bad is None else str(run.bad),
            "NCCL_RAS_ADDR": f"127.0.0.1:{free_port()}",
        }
        with running(
            run.mistake.program(run.bad),
            folder,
            faulty=run.bad is not None,
            traced=True,
            nccl=self.nccl,
            variables=variables,
        ) as job:
            still = math.inf if run.bad is None else _STILL
            run.job = _wait(job, min(self.end - 40, time.monotonic() + _MOVES), still)
            if run.job == ENDED:
                run.job = f"{ENDED} {job.process.returncode}"
            elif run.bad is not None:
                pids = [str(pid) for pid in job.pids]
                if pids:
                    run.attach = _document("attach", "--json", "-o", str(folder / "bundle"), *pids)
                if not run.attach and len(job.pids) < max(len(pids), 1):
                    run.job = f"{ENDED} while it was asked"
            job.kill()
            run.diagnose = _document("diagnose", "--json", str(job.rings))
            for way in ("attach", "diagnose"):
                (folder / f"{way}.json").write_text(json.dumps(getattr(run, way)))
            names = ("output.txt", "attach.json", "diagnose.json", "bundle")
            self.archive.add(
                run.name, {"rings": job.rings, **{name: folder / name for name in names}}
            )


def _wait(job: Job, end: float, still: float) -> str:
    """Wait until the job has ended, records nothing for some seconds, or its time is over."""
    since, seen = time.monotonic(), dict[str, int]()
    while (now := time.monotonic()) < end:
        if job.process.poll() is not None:
            return ENDED
        positions = job.positions()
        started = len(job.find_ranks()) == len(positions) == job.program.world
        if positions != seen or not started or min(positions.values()) < _PAST:
            seen, since = positions, now
        if now - since >= still:
            return STILL
        time.sleep(0.5)
    return MOVING


def _document(*command: str) -> dict[str, Any] | None:
    environment = {**os.environ, "NO_COLOR": "1"}
    environment.pop("LD_PRELOAD", None)
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "ncclscope", *command],
            capture_output=True,
            text=True,
            timeout=_ANSWER,
            check=False,
            env=environment,
        )
        document = json.loads(ran.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        print(f"ncclscope {command[0]}: no answer in {_ANSWER:.0f} s", file=sys.stderr)
        return None
    except (ValueError, IndexError):
        print(f"ncclscope {command[0]}: {ran.stderr[-500:]}", file=sys.stderr)
        return None
    return document if isinstance(document, dict) else None


def again(folder: Path) -> list[Run]:
    """Diagnose the rings below a directory once more and return the runs."""
    runs = []
    answered: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.rglob("answers.jsonl")):
        for line in path.read_text().splitlines():
            answer = json.loads(line)
            answered[Run(answer["program"], answer["bad"]).name] = answer
    with tempfile.TemporaryDirectory(prefix="one-gpu-") as scratch:
        for name, place in unpack(folder, Path(scratch)):
            run = Run(**answered[name])
            run.diagnose = _document("diagnose", "--json", str(place / "rings"))
            run.judge()
            runs.append(run)
            print(run.row(), flush=True)
            shutil.rmtree(place)
    return runs


def _chosen(names: Sequence[str], faulty: Sequence[int], healthy: bool) -> list[Run]:
    """Return the runs: all programs with the first faulty rank, then with the next."""
    cases: list[int | None] = [*faulty, *([None] if healthy else [])]
    if not names:
        return [Run(name, bad) for bad in cases for name in MISTAKES]
    found = []
    for name in names:
        program, _, bad = name.partition(":")
        if program not in MISTAKES:
            raise SystemExit(f"no program is called {program}")
        if bad:
            found.append(Run(program, None if bad == HEALTHY else int(bad)))
        else:
            found += [Run(program, bad) for bad in cases]
    return found


def main() -> int:
    """Run what is chosen and print the table; returns 1 when an answer is certain and wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME[:BAD]", help="(default: all programs)")
    library = parser.add_mutually_exclusive_group(required=True)
    library.add_argument("--nccl", default="", metavar="FILE", help="library that is preloaded")
    library.add_argument("--gloo", action="store_true", help="on the CPU, without NCCL")
    library.add_argument("--again", type=Path, metavar="DIR", help="only diagnose what it holds")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="for what is kept")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="every Nth run from the Kth")
    parser.add_argument("--limit", type=float, default=540, metavar="SECONDS", help="for all")
    parser.add_argument("--jobs", type=int, default=4, metavar="COUNT", help="at the same time")
    parser.add_argument("--bad", type=int, nargs="*", default=FAULTY, metavar="RANK")
    parser.add_argument("--no-healthy", action="store_true", help="leave the healthy runs out")
    options = parser.parse_args()
    print(f"{HEADER}\n|{'---|' * (HEADER.count('|') - 1)}")
    if options.again:
        runs = again(options.again)
    else:
        if options.keep is None:
            parser.error("--keep DIR is needed")
        runs = _run(options)
    for way in ("attach", "diagnose"):
        faulty = [run.judged[way] for run in runs if run.bad is not None and way in run.judged]
        print(f"{way}: {len(faulty)} faulty: {summary(faulty)}")
    quiet = [run.judged["diagnose"] for run in runs if run.bad is None]
    print(f"diagnose: {len(quiet)} healthy: {summary(quiet)}")
    return int(any("wrong and certain" in run.judged.values() for run in runs))


def _run(options: argparse.Namespace) -> list[Run]:
    part, parts = map(int, options.part.split("/"))
    runs = _chosen(options.names, options.bad, not options.no_healthy)[part - 1 :: parts]
    if options.gloo:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        for run in [run for run in runs if run.mistake.needs_gpu]:
            print(f"{run.name}: left out, it needs CUDA graphs")
            runs.remove(run)
    session = Session(options.nccl, options.keep, time.monotonic() + options.limit)
    with ThreadPoolExecutor(options.jobs) as pool, contextlib.suppress(KeyboardInterrupt):
        list(pool.map(session.run, runs))
    if session.left_out:
        left = (run.name.replace("-", ":") for run in session.left_out)
        print(f"no time was left for {len(session.left_out)} runs: {' '.join(left)}")
    return session.runs


if __name__ == "__main__":
    sys.exit(main())
