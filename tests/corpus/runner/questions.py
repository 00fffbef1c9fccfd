"""Asks ncclscope about a program, in each way that a user can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.corpus.runner.job import ENDED, MOVING, Job, running
from tests.corpus.runner.score import NO_ANSWER, NO_HANG, score, score_healthy
from tests.corpus.runner.truth import Program

__all__ = ["HEALTHY", "WAYS", "Answer", "answerable", "ask"]

HEALTHY = "healthy"
WAYS = ("attach", "watch", "diagnose", "untraced")
_LIMIT = 120
"""Seconds for an answer."""


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes:
        way: How it was asked.
        score: How good it is.
        document: The JSON that it consists of; None for none.
        screen: The same for people.
        note: What else there is to say.
    """

    way: str
    score: str
    document: dict[str, Any] | None
    screen: str = ""
    note: str = ""


def answerable(program: Program, ways: Sequence[str]) -> list[str]:
    """Return the ways in which one can ask about a program: of one that ends, only afterwards."""
    return [way for way in ways if way in ("diagnose", HEALTHY) or not program.ends]


def ask(
    program: Program,
    ways: Sequence[str],
    folder: Path,
    python: str = sys.executable,
    nccl: str = "",
) -> Iterator[Answer]:
    """Run a program and yield the answers about it, in the ways that are asked for.

    Args:
        program: Which.
        ways: Of asking.
        folder: For what the program and the commands say.
        python: Interpreter of the program.
        nccl: An NCCL over which the program runs; preloaded where it is a path.
    """
    ways = answerable(program, ways)
    traced = [way for way in ("attach", "watch", "diagnose") if way in ways]
    # Most of the time is spent waiting. But the ranks of two jobs are too many for one GPU.
    with ThreadPoolExecutor(1 if nccl else 3) as pool:
        asked = []
        if traced:
            asked.append(pool.submit(_ask_traced, program, traced, folder, python, nccl))
        if "untraced" in ways:
            asked.append(pool.submit(_ask_untraced, program, folder, python, nccl))
        if HEALTHY in ways:
            asked.append(pool.submit(_ask_healthy, program, folder, python, nccl))
        for answers in asked:
            yield from answers.result()


def _ask_traced(
    program: Program, ways: Sequence[str], folder: Path, python: str, nccl: str
) -> list[Answer]:
    answers = []
    place = folder / "traced"
    with running(program, place, faulty=True, traced=True, python=python, nccl=nccl) as job:
        ended = job.wait()
        rings = str(job.rings)
        if "attach" in ways:
            answers.append(_ask_attach(program, job, ended, "attach", folder))
        if "watch" in ways:
            document, screen = _json_and_text("watch", rings, "--once")
            answers.append(_answer(program, "watch", document, screen, ended))
        job.kill()
        if "diagnose" in ways:
            document, screen = _json_and_text("diagnose", rings)
            answers.append(_answer(program, "diagnose", document, screen, ended))
    return answers


def _ask_untraced(program: Program, folder: Path, python: str, nccl: str) -> list[Answer]:
    place = folder / "untraced"
    with running(program, place, faulty=True, traced=False, python=python, nccl=nccl) as job:
        return [_ask_attach(program, job, job.wait(), "untraced", folder)]


def _ask_attach(program: Program, job: Job, ended: str, way: str, folder: Path) -> Answer:
    pids = [str(pid) for pid in job.pids]
    if not pids:
        return Answer(way, NO_HANG, None, note="all ranks have ended")
    bundle = folder / way / "bundle"
    subprocess.run(["rm", "-rf", str(bundle)], check=True)
    document = _json("attach", "--json", "-o", str(bundle), *pids)
    screen = bundle / "verdict.txt"
    text = screen.read_text() if screen.exists() else ""
    return _answer(program, way, document, text, ended)


def _answer(
    program: Program, way: str, document: dict[str, Any] | None, screen: str, ended: str
) -> Answer:
    if ended == MOVING and program.hangs:
        return Answer(way, NO_HANG, document, screen, "the job still moved")
    note = ""
    if ended == ENDED and program.hangs and not program.ends:
        note = "the job ended by itself"
    return Answer(way, score(document, program, way), document, screen, note)


def _ask_healthy(program: Program, folder: Path, python: str, nccl: str) -> list[Answer]:
    place = folder / HEALTHY
    with running(program, place, faulty=False, traced=True, python=python, nccl=nccl) as job:
        watcher = subprocess.Popen(
            [sys.executable, "-m", "ncclscope", "watch", "--json", str(job.rings)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=_environment(),
        )
        try:
            status = job.process.wait(400)
        except subprocess.TimeoutExpired:
            status = -1
        watcher.terminate()
        lines = watcher.communicate(timeout=60)[0].splitlines()
        during = [json.loads(line) for line in lines if line.startswith("{")]
        document, screen = _json_and_text("diagnose", str(job.rings))
    seen = [one["status"] for one in during]
    note = f"exit status {status}, watch {seen}, diagnose {document and document['status']}"
    found = score_healthy([*during, *([document] if document else [])])
    if status != 0 or document is None or document["status"] != "ok":
        found = "false alarm" if status == 0 and found == "false alarm" else NO_ANSWER
        if document is not None and status == 0 and document["status"] == "unknown":
            found = "undecided"
    return [Answer(HEALTHY, found, document, screen, note)]


def _json_and_text(command: str, *arguments: str) -> tuple[dict[str, Any] | None, str]:
    with ThreadPoolExecutor(1) as pool:
        text = pool.submit(_run, (command, *arguments))
        return _json(command, "--json", *arguments), text.result().stdout


def _json(*command: str) -> dict[str, Any] | None:
    ran = _run(command)
    try:
        document = json.loads(ran.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        print(f"ncclscope {' '.join(command)}: {ran.stderr[-500:]}", file=sys.stderr)
        return None
    return document if isinstance(document, dict) else None


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ncclscope", *command]
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            check=False,
            env=_environment(),
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, -1, "", f"no answer in {_LIMIT} s")


def _environment() -> dict[str, str]:
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment
