"""Lasting hangs, what each data source reports of them, and the table of it.

``python -m tests.gpu.hangs DIR [PAGE]`` prints the table from what tests left in DIR, where
NCCLSCOPE_TRANSCRIPTS pointed to, or writes it into a page, behind its mark.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncclscope.attach.stacks import find_py_spy
from ncclscope.launch.rank_process import free_port
from tests.comparison import fr_trace
from tests.gpu.asking import ask, keep
from tests.integration.traced_server import NCCLSCOPE

__all__ = ["TOOLS", "Hang", "evidence", "examine", "watching"]

MARK = "<!-- made by: python -m tests.gpu.hangs -->"
STALL = 5
"""Options of `watch`."""
TOOLS = ("watch", "attach", "diagnose")
_GPUS = "index,utilization.gpu,utilization.memory,power.draw"


@dataclass(frozen=True)
class Hang:
    """A hang that lasts.

    Attributes:
        case: Its name.
        planted: What was done, in words.
        kind: What its verdict should be; empty where that may differ.
        ranks: Whom it should name.
        rings: Where the job records.
        pids: Of the processes to attach to; none where all have ended.
        environment: From :func:`evidence`.
        end: Ends them with SIGKILL.
        from_bundle: Whether `diagnose` is to read what `attach` wrote, and not the rings alone.
    """

    case: str
    planted: str
    kind: str
    ranks: Sequence[int]
    rings: Path
    pids: Sequence[int]
    environment: Mapping[str, str]
    end: Callable[[], object]
    from_bundle: bool = False


def evidence(directory: Path) -> dict[str, str]:
    """Return variables under which a job can be asked, also beside others of this machine.

    NCCL's RAS answers on a port of its own, and torch's Flight Recorder records, and dumps to a
    directory when asked.
    """
    prefix = str(directory / fr_trace.PREFIX)
    return {
        "NCCL_RAS_ADDR": f"localhost:{free_port()}",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": prefix,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix,
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(directory / "ask_"),
    }


@contextlib.contextmanager
def watching(rings: Path) -> Iterator[subprocess.Popen[str]]:
    """Run `ncclscope watch` until it finds something."""
    command = [*NCCLSCOPE, "watch", str(rings), "--until-divergence", "--json"]
    watch = subprocess.Popen(
        [*command, "--stall", str(STALL)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield watch
    finally:
        watch.kill()
        watch.communicate()


def examine(hang: Hang, watch: subprocess.Popen[str], directory: Path) -> dict[str, Any]:
    """Ask everything, end the job, and ask what it left.

    Args:
        hang: The hang.
        watch: From :func:`watching`, since before it hung.
        directory: For files.

    Returns:
        What was found, by tool; it is kept as well.
    """
    seen, _ = watch.communicate(timeout=90)
    keep(hang.case, "watch.jsonl", seen)
    found: dict[str, Any] = {"watch": answer_of(json.loads(seen.splitlines()[-1]))}
    bundle = directory / "bundle"
    if hang.pids:
        keep(hang.case, "ras.txt", ask_ras(hang.environment["NCCL_RAS_ADDR"]))
        keep(hang.case, "nvidia-smi.txt", _gpus())
        asked = [*NCCLSCOPE, "attach", *map(str, hang.pids), "--flight-recorder", "-o", str(bundle)]
        shown = subprocess.run(
            asked, capture_output=True, text=True, check=False,
            env={**os.environ, "COLUMNS": "100"},
        )  # fmt: skip
        keep(hang.case, "attach.txt", f"$ ncclscope attach\n{shown.stdout}{shown.stderr}")
        snapshot = json.loads((bundle / "attach.json").read_text())
        keep(hang.case, "ras-asked.txt", (snapshot.get("ras") or {}).get("text") or "no answer")
        document = json.loads((bundle / "verdict.json").read_text())
        found["attach"] = answer_of(document)
        sources = {item["name"]: item for item in document.get("witnesses", ())}
        for name in ("ras", "gpu"):
            found[name] = sources.get(name, {}).get("says", "")
        found["coverage"] = document["coverage"]["comms"]
        found["py-spy"] = _top_frames(hang)
    hang.end()
    found["diagnose"] = answer_of(
        ask(hang.case, "diagnose", "diagnose", bundle if hang.from_bundle else hang.rings)
    )
    found |= _dumps(hang, bundle / "flight_recorder", directory / "torchfrtrace")
    found |= {"planted": hang.planted, "expected": [hang.kind, list(hang.ranks)]}
    found["asked"] = len(hang.pids)
    keep(hang.case, "found.json", json.dumps(found, indent=1))
    return found


def answer_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the compared fields of a verdict."""
    verdict = document.get("verdict") or {}
    ranks = verdict.get("diverging_ranks") or []
    return {
        "status": document["status"],
        "kind": verdict.get("kind", ""),
        "ranks": ranks,
        "candidates": verdict.get("candidate_ranks") or [],
        "comm": (verdict.get("comm") or {}).get("label", ""),
        "backend": (verdict.get("comm") or {}).get("backend", ""),
        "quiet": document.get("quiet_seconds"),
    }


def ask_ras(address: str) -> str:
    """Return the output of `ncclras -v`, or the reason why there is none."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(b"VERBOSE STATUS\n")
            parts = []
            while part := connection.recv(65536):
                parts.append(part)
    except OSError as error:
        return f"no answer: {error}"
    return b"".join(parts).decode("utf-8", "replace")


def _gpus() -> str:
    if shutil.which("nvidia-smi") is None:
        return "no nvidia-smi"
    command = ["nvidia-smi", f"--query-gpu={_GPUS}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _top_frames(hang: Hang) -> list[str]:
    """Return the innermost Python frame of each main thread, as `py-spy dump` prints it."""
    py_spy = find_py_spy()
    if py_spy is None:
        return ["no py-spy"]
    texts = []
    for pid in hang.pids:
        done = subprocess.run(
            [py_spy, "dump", "--pid", str(pid)], capture_output=True, text=True, check=False
        )
        texts.append(done.stdout or done.stderr)
    keep(hang.case, "py-spy.txt", "\n".join(texts))
    return [_innermost(text) for text in texts]


def _innermost(text: str) -> str:
    lines = iter(text.splitlines())
    main = any('"MainThread"' in line for line in lines)
    return next(lines, "").strip() if main else "no main thread"


def _dumps(hang: Hang, source: Path, target: Path) -> dict[str, Any]:
    """Return what a Flight Recorder dump on demand says, to us and to torch's tool."""
    files = sorted(source.iterdir()) if source.is_dir() else []
    if not files:
        return {"dumps": 0}
    _keep_packed(hang.case, files)
    target.mkdir()
    for file in files:
        shutil.copy(file, target / f"{fr_trace.PREFIX}{file.name.rpartition('_')[2]}")
    command = [*NCCLSCOPE, "diagnose", str(source)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    keep(hang.case, "flight-recorder.txt", f"$ ncclscope diagnose\n{shown.stdout}{shown.stderr}")
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    own = answer_of(json.loads(done.stdout)) if done.returncode != 2 else done.stderr.strip()
    incomplete = len(files) < max(2, len(hang.pids))
    try:
        (answer,) = fr_trace.answers([fr_trace.Task(target, "ascending", incomplete)])
        theirs = answer.text or "nothing"
    except RuntimeError as error:
        theirs = f"could not be run: {str(error)[-80:]}"
    return {"dumps": len(files), "dumps, ncclscope": own, "dumps, torchfrtrace": theirs}


def _keep_packed(case: str, files: Sequence[Path]) -> None:
    """Keep the dumps themselves, to be examined again by what has learnt since."""
    if directory := os.environ.get("NCCLSCOPE_TRANSCRIPTS"):
        with tarfile.open(Path(directory) / case / "flight-recorder.tgz", "w:gz") as archive:
            for file in files:
                archive.add(file, file.name)


# --- the table -----------------------------------------------------------------------------------


def rows(directory: Path) -> Iterator[list[str]]:
    """Yield a row for each case that was kept."""
    for file in sorted(directory.glob("*/found.json")):
        found = json.loads(file.read_text())
        quiet = found["watch"].get("quiet")
        yield [
            f"`{file.parent.name}`: {found['planted']}",
            *(spelled(found[tool]) if tool in found else "all had ended" for tool in TOOLS),
            "" if quiet is None else f"{quiet * 1e3:.0f} ms" if quiet < 1 else f"{quiet:.1f} s",
            _coverage_in_short(found.get("coverage")),
            _ras_in_short(found.get("ras") or "not asked"),
            *_dumps_in_short(found),
            _frames_in_short(found.get("py-spy", ())),
        ]


def _coverage_in_short(comms: Sequence[Mapping[str, Any]] | None) -> str:
    """Return how many calls NCCL counted, and on which communicators fewer are recorded.

    What NCCL reported to the profiler plugin counts before what RAS says. RAS counts launches, of
    which a v-collective has several.
    """
    if comms is None:
        return "not asked"
    found: dict[str, Mapping[str, Any]] = {}
    for one in comms:
        if one["counted"] is not None and (one["key"] not in found or one["by"] == "nccl"):
            found[one["key"]] = one
    fewer = [
        f"{one['label']} {one['recorded']} of {one['counted']}"
        f"{' launches' if one['by'] == 'ras' else ''}"
        for one in found.values()
        if one["recorded"] < one["counted"]
    ]
    if fewer or not found:
        return "; ".join(fewer) or "nothing counted"
    return f"all {sum(one['counted'] for one in found.values())} on {len(found)} communicators"


def _frames_in_short(frames: Sequence[str]) -> str:
    """Return each innermost frame with the ranks, by their place, that are in it."""
    ranks: dict[str, list[int]] = {}
    for place, frame in enumerate(frames):
        ranks.setdefault(re.sub(r"\(.*/", "(", frame), []).append(place)
    return "; ".join(f"{' '.join(map(str, at))}: {frame}" for frame, at in ranks.items())


def _ras_in_short(text: str) -> str:
    if "nothing to report" in text or "no problem on" in text:
        return "nothing to report"
    each = (
        part.strip() for part in re.sub(r" on (communicator )?0x[0-9a-f]+", "", text).split(";")
    )
    return "; ".join(dict.fromkeys(each))


def _dumps_in_short(found: Mapping[str, Any]) -> tuple[str, str]:
    """Return what the dumps say, to us and to torch's tool, and how many there are, if not all."""
    if not found["dumps"]:
        return "no dumps", "no dumps"
    short = found["dumps"] < found.get("asked", found["dumps"])
    some = f"{found['dumps']} of {found['asked']} dumps: " if short else ""
    theirs = found["dumps, torchfrtrace"]
    return f"{some}{spelled(found['dumps, ncclscope'])}", f"{some}{theirs}"


def spelled(verdict: Mapping[str, Any] | str) -> str:
    """Return a verdict in a few words."""
    if isinstance(verdict, str):
        return verdict
    ranks = verdict["ranks"] or verdict["candidates"]
    among = "" if verdict["ranks"] else "among "
    named = f", {among}rank{'s' * (len(ranks) > 1)} {' '.join(map(str, ranks))}" if ranks else ""
    return f"`{verdict['kind']}`{named}" if verdict["kind"] else verdict["status"]


def main() -> None:
    """Print the table, or put it into a page."""
    directory, *page = map(Path, sys.argv[1:])
    heads = ["planted", *TOOLS, "quiet when watch spoke", "recorded of the calls NCCL counted"]
    heads += ["NCCL RAS", "Flight Recorder's dumps, on request: ncclscope", "torchfrtrace"]
    heads += ["py-spy dump, innermost frame of each rank"]
    lines = [heads, ["---"] * len(heads), *rows(directory)]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    if not page:
        print(text)
        return
    before, mark, _ = page[0].read_text().partition(MARK)
    if not mark:
        raise SystemExit(f"{page[0]} has no line {MARK}")
    page[0].write_text(f"{before}{MARK}\n\n{text}\n")


if __name__ == "__main__":
    main()
