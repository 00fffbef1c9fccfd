"""Programs that use NCCL in any way, recorded by its profiler plugin: four ranks on one GPU.

    python -m benchmarks.gpu.any_program --nccl /tmp/libnccl.so.2 --keep DIR [NAME ...]

Runs a program in C++, one in JAX, and torch's DDP, FSDP2 and a compiled graph, each healthy and
with a mistake of rank 2. A healthy one has to be `ok`, with every call that NCCL counted recorded;
a faulty one has to be named, or reported as undecided. Prints one line for each, and keeps what
`attach` and `diagnose` printed in DIR/transcripts.txt. NCCL 2.31 or newer is preloaded, into the
programs alone; with `--world 1`, any NCCL serves, and only the healthy programs in C++ and JAX run,
to see that the plugin is loaded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

from ncclscope.launch.gpus import SHARED
from ncclscope.ring.reader import RingFile
from tests.corpus.runner.questions import HEALTHY, ask
from tests.corpus.runner.score import FAIR, describe
from tests.corpus.runner.truth import PROGRAMS

HERE = Path(__file__).parent
LIMIT = 480
MISTAKES = ("none", "left_out", "changed")
OWN = ("c++", "jax")
TORCH = {"ddp": "ddp_no_sync", "fsdp2": "fsdp_eval_rank0", "compiled": "compiled_left_out"}
FAULTY_RANK = 2
"""Of the programs in C++ and JAX."""
_STARTING, _ENDING, _STILL, _ANSWER = 100.0, 100.0, 6.0, 60.0
"""Seconds for the first call, a healthy program, no further call, and one command."""


@dataclass
class Session:
    """What all cases share.

    Attributes:
        nccl: Library to preload; empty for the installed one.
        world: Number of ranks.
        keep: Directory for transcripts.
        scratch: Directory for what is compiled.
    """

    nccl: str
    world: int
    keep: Path
    scratch: Path

    def note(self, title: str, text: str) -> None:
        """Append to the transcript."""
        with (self.keep / "transcripts.txt").open("a", encoding="utf-8") as file:
            file.write(f"\n===== {title}\n{text.rstrip()}\n")


def main() -> int:
    """Run the programs until time is over; return 1 if an answer is not fair."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [*OWN, *TORCH]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--nccl", default="", metavar="FILE", help="library that is preloaded")
    parser.add_argument("--keep", type=Path, required=True, metavar="DIR", help="for answers")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS", help="for all")
    parser.add_argument("--world", type=int, default=4, metavar="RANKS", help="4 (default) or 1")
    options = parser.parse_args()
    options.keep.mkdir(parents=True, exist_ok=True)
    begun, unfair = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="any-program-") as scratch:
        session = Session(options.nccl, options.world, options.keep, Path(scratch))
        chosen = options.names or (names if options.world > 1 else OWN)
        for name in chosen:
            for line, fair in _answers(session, name, begun + options.limit):
                unfair += not fair
                took = time.monotonic() - begun
                print(f"{took:4.0f} s  {name:9} {line}", flush=True)
                session.note(f"{name}: {line}", "")
    return int(unfair > 0)


def _answers(session: Session, name: str, end: float) -> Iterator[tuple[str, bool]]:
    """Yield a line for each case of a program, and whether it is fair."""
    if name in TORCH:
        if time.monotonic() + 150 > end:
            yield "no time left", True
            return
        yield from _torch(session, name)
        return
    try:
        command = _command_of(session, name)
    except (OSError, subprocess.CalledProcessError, ImportError) as error:
        yield f"cannot be run here: {error}", True
        return
    for mistake in MISTAKES[: 1 if session.world == 1 else None]:
        if time.monotonic() + 60 > end:
            yield f"{mistake}: no time left", True
        else:
            yield _case(session, name, mistake, [*command, mistake])


# --- torch: the programs of the corpus ------------------------------------------------------------


def _torch(session: Session, name: str) -> Iterator[tuple[str, bool]]:
    program = PROGRAMS[TORCH[name]]
    folder = session.keep / name
    nccl = session.nccl or "libnccl.so.2"
    for answer in ask(program, (HEALTHY, "attach", "diagnose"), folder, nccl=nccl):
        document = answer.document or {}
        what = answer.note if answer.way == HEALTHY else describe(answer.document)
        line = f"{answer.way:9} {what}, {answer.score}, recorded {_counts(document)}"
        session.note(f"{name} {answer.way}", answer.screen)
        yield line, answer.score in FAIR or answer.score.startswith("right")
    shutil.rmtree(folder, ignore_errors=True)


# --- C++ and JAX ----------------------------------------------------------------------------------


def _command_of(session: Session, name: str) -> list[str]:
    """Return the command of a program, which gets the mistake as its last argument."""
    if name == "jax":
        __import__("jax")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        return [sys.executable, str(HERE / "jax_job.py"), f"127.0.0.1:{port}"]
    built = session.scratch / "nccl_job"
    source = str(HERE / "nccl_job.cc")
    compiler = shutil.which("g++") or shutil.which("nvcc") or "g++"
    subprocess.run([compiler, "-O1", "-o", str(built), source, "-ldl"], check=True)
    nccl = session.nccl or _library("nccl", "libnccl.so.2")
    return [str(built), nccl, _library("cu", "libcudart.so.1[23]"), str(session.scratch / "id")]


def _library(package: str, pattern: str) -> str:
    """Return a library that pip has installed for torch; its plain name if there is none."""
    for place in sys.path:
        for found in sorted(Path(place, "nvidia").glob(f"{package}*/lib/{pattern}")):
            return str(found)
    for found in sorted(Path("/usr/local").glob(f"cuda*/lib64/{pattern}")):
        return str(found)
    return pattern.replace("[23]", "3")


_START = """
for rank in $(seq 0 $((WORLD_SIZE - 1))); do
    RANK=$rank LOCAL_RANK=0 env $PRELOADED "$@" > "$OUTPUT/rank$rank.txt" 2>&1 &
    ranks="$ranks $!"
done
status=0
for rank in $ranks; do wait $rank || status=$?; done
exit $status
"""
"""NCCL is preloaded into the ranks alone: our own Python may have loaded another one."""


@contextlib.contextmanager
def _ranks(session: Session, command: Sequence[str]) -> Iterator[tuple[Path, Popen[bytes]]]:
    """Run a program's ranks under `ncclscope run`; all are killed at the end."""
    (session.scratch / "id").unlink(missing_ok=True)
    rings = Path(tempfile.mkdtemp(prefix="any-program-", dir="/dev/shm"))
    run = [sys.executable, "-m", "ncclscope", "run", "--dir", str(rings)]
    environment = {**os.environ, "WORLD_SIZE": str(session.world), "NCCL_NVLS_ENABLE": "0"}
    environment |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "NCCL_DEBUG": "WARN"}
    environment["OUTPUT"] = str(session.scratch)
    environment["PRELOADED"] = f"LD_PRELOAD={session.nccl}" if session.nccl else ""
    if session.world > 1:
        environment[SHARED] = "1"
    job = Popen(
        [*run, "--", "sh", "-c", _START, "ranks", *command],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield rings, job
    finally:
        _end(job)
        shutil.rmtree(rings, ignore_errors=True)


def _end(job: Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()


def _case(session: Session, name: str, mistake: str, command: Sequence[str]) -> tuple[str, bool]:
    with _ranks(session, command) as (rings, job):
        if mistake == "none":
            line, fair = _healthy(session, name, rings, job)
        else:
            line, fair = _faulty(session, name, mistake, rings, job)
    output = "".join(
        path.read_text("utf-8", "replace")[-1500:]
        for path in sorted(session.scratch.glob("rank*.txt"))
    )
    session.note(f"{name} {mistake}: output of the ranks", output)
    return f"{mistake:9} {line}", fair


def _healthy(session: Session, name: str, rings: Path, job: Popen[bytes]) -> tuple[str, bool]:
    try:
        job.wait(_ENDING)
    except subprocess.TimeoutExpired:
        _end(job)
    status = job.returncode
    document = _ask(session, f"{name} healthy", "diagnose", str(rings))
    line = f"exit {status}, {_status(document)}, recorded {_counts(document)}"
    if session.world == 1:  # NCCL reports no call of a communicator with one member
        return f"{line}, {len([*rings.glob('*.ring')])} ring", bool([*rings.glob("*.ring")])
    fair = status == 0 and document.get("status") == "ok" and _is_counted(document)
    return line, fair


def _faulty(
    session: Session, name: str, mistake: str, rings: Path, job: Popen[bytes]
) -> tuple[str, bool]:
    where = _wait_until_still(rings, job)
    pids = [str(pid) for pid in _pids(rings)]
    answers = {}
    if where == "still":
        answers["attach"] = _ask(session, f"{name} {mistake}", "attach", *pids)
    _end(job)
    answers["diagnose"] = _ask(session, f"{name} {mistake}", "diagnose", str(rings))
    answered = [f"{way} {_status(one)}: {_judged(one)}" for way, one in answers.items()]
    fair = all(_judged(one) != "WRONG" for one in answers.values())
    counts = _counts(answers["diagnose"])
    return f"{where}, {'; '.join(answered)}, recorded {counts}", fair


def _heads(rings: Path) -> dict[str, int]:
    """Return the number of records in each ring."""
    found = {}
    for path in rings.glob("*.ring"):
        with contextlib.suppress(Exception):
            ring = RingFile(path)
            found[path.name] = ring.head
            ring.close()
    return found


def _pids(rings: Path) -> list[int]:
    found = []
    for path in sorted(rings.glob("*.ring")):
        with contextlib.suppress(Exception):
            ring = RingFile(path)
            found.append(int(ring.about["pid"]))
            ring.close()
    return found


def _wait_until_still(rings: Path, job: Popen[bytes]) -> str:
    """Wait until no rank has recorded a call for some seconds; return what happened."""
    end = time.monotonic() + _STARTING
    before, since = _heads(rings), time.monotonic()
    while time.monotonic() < end:
        time.sleep(0.5)
        if job.poll() is not None:
            return "ended"
        heads = _heads(rings)
        if heads != before or not any(heads.values()):
            before, since = heads, time.monotonic()
        elif time.monotonic() - since > _STILL:
            return "still"
    return "moving"


def _ask(session: Session, title: str, *command: str) -> Mapping[str, Any]:
    """Ask ncclscope, keep what people would read, and return the document."""
    bundle = session.scratch / "bundle"
    shutil.rmtree(bundle, ignore_errors=True)
    extra = ["-o", str(bundle)] if command[0] == "attach" else []
    document = _run(*command, "--json", *extra)
    screen = bundle / "verdict.txt"
    text = screen.read_text("utf-8") if screen.exists() else _run(*command).stdout
    session.note(f"{title}: ncclscope {command[0]}", text + document.stderr)
    with contextlib.suppress(ValueError):
        found: Mapping[str, Any] = json.loads(document.stdout)
        return found
    return {}


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    full = [sys.executable, "-m", "ncclscope", *command]
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    try:
        return subprocess.run(
            full, env=environment, capture_output=True, text=True, timeout=_ANSWER, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(full, -1, "", f"no answer in {_ANSWER:.0f} s")


def _status(document: Mapping[str, Any]) -> str:
    found = document.get("verdict") or {}
    ranks = found.get("diverging_ranks") or found.get("candidate_ranks") or ""
    words = [document.get("status", "no answer"), found.get("kind"), ranks, found.get("confidence")]
    return " ".join(str(word) for word in words if word)


def _judged(document: Mapping[str, Any]) -> str:
    """Return how good the answer about a faulty program is."""
    if not document or document.get("status") == "ok":
        return "WRONG"
    found = document.get("verdict") or {}
    if ranks := found.get("diverging_ranks"):
        return "right" if ranks == [FAULTY_RANK] else "WRONG"
    candidates = found.get("candidate_ranks") or [FAULTY_RANK]
    return "undecided" if FAULTY_RANK in candidates else "WRONG"


def _is_counted(document: Mapping[str, Any]) -> bool:
    comms = (document.get("coverage") or {}).get("comms") or ()
    return bool(comms) and all(one["recorded"] == one["counted"] for one in comms)


def _counts(document: Mapping[str, Any]) -> str:
    comms = (document.get("coverage") or {}).get("comms") or ()
    return ", ".join(f"{one['recorded']}/{one['counted']} ({one['by']})" for one in comms) or "-"


if __name__ == "__main__":
    sys.exit(main())
