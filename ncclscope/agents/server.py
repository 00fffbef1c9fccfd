"""The server: ncclscope's questions as tools of the Model Context Protocol."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

from ncclscope import __version__, settings
from ncclscope.agents.answers import NOTICE, ask, bounded
from ncclscope.agents.kinds import KINDS

_INSTRUCTIONS = f"""\
ncclscope compares what each rank of a distributed job posted (NCCL, gloo, vLLM), and names the \
rank that diverged or hangs. For a job that runs now call attach, or watch_once with its ring \
directory; after a crash call diagnose. status: ok, diverged, hung, incomplete, unknown; only ok \
claims agreement. confidence: certain is recorded, likely is inferred, ambiguous has candidates \
instead of ranks. {NOTICE}"""

_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
_MOST_RUNS = 20
_SHARED_MEMORY = Path("/dev/shm")


def make_server() -> MCPServer[Any]:
    """Return a server with all tools."""
    server: MCPServer[Any] = MCPServer(
        "ncclscope", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING"
    )
    for function in (diagnose, attach, watch_once, list_rings, explain_kind):
        server.tool(annotations=_READS)(function)
    server.tool(annotations=_WRITES)(report)
    return server


def diagnose(paths: list[str], detail: bool = False) -> dict[str, Any]:
    """Compare the ranks of a job that has ended or hangs, from its records.

    Args:
        paths: Ring directories, bundles of attach or collect, Flight Recorder dumps, JSON Lines.
        detail: Return the whole document.
    """
    return ask("diagnose", ["--unread"], paths, detail=detail)


def attach(pids: list[int] | None = None, detail: bool = False) -> dict[str, Any]:
    """Examine live workers of this host, traced or not; reads only and takes some seconds.

    Args:
        pids: Worker processes; all that are found by default.
        detail: Return the whole document.
    """
    return ask("attach", [str(int(pid)) for pid in pids or ()], detail=detail)


def watch_once(paths: list[str], detail: bool = False) -> dict[str, Any]:
    """Give one verdict on a running job from its rings, without touching the job.

    Args:
        paths: Its ring directories.
        detail: Return the whole document.
    """
    return ask("watch", ["--once"], paths, detail=detail)


def report(paths: list[str], output: str) -> dict[str, Any]:
    """Write the verdict and its evidence as one HTML page.

    Args:
        paths: As for diagnose.
        output: The file to write; an existing file is replaced only if it is such a page.
    """
    if not output or output == "-":
        return {"error": "name the file to write", "next": []}
    options = ["--unread", f"--output={os.path.abspath(output)}"]
    answer = ask("report", options, paths, detail=True)
    return {name: bounded(part) if name == "data" else part for name, part in answer.items()}


def list_rings(directory: str = "") -> dict[str, Any]:
    """List ring directories of this host, newest first.

    Args:
        directory: Where to look; by default NCCLSCOPE_DIR and the shared memory of this host.
    """
    places = [Path(directory)] if directory else [Path(settings.directory() or "."), _SHARED_MEMORY]
    found: dict[Path, tuple[float, int]] = {}
    for place in places:
        for folder in (place, *_folders(place)):
            rings = _rings(folder)
            if rings:
                found[folder.resolve()] = (max(rings), len(rings))
    newest = sorted(found, key=lambda folder: found[folder], reverse=True)
    runs = [
        {
            "directory": bounded(str(folder)),
            "rings": found[folder][1],
            "written": found[folder][0],
        }
        for folder in newest[:_MOST_RUNS]
    ]
    return {
        "notice": NOTICE,
        "data": {"runs": runs, "more": max(0, len(newest) - _MOST_RUNS)},
        "next": ["Call watch_once for a job that runs, diagnose for one that has ended."]
        if runs
        else ["No job was recorded here: call attach, or start jobs under `ncclscope run`."],
    }


def explain_kind(kind: str) -> dict[str, Any]:
    """Explain a kind of verdict: its meaning, usual causes, and where to look.

    Args:
        kind: Such as missing_call; `verdict.kind` in other answers.
    """
    if kind not in KINDS:
        return {"error": "no such kind", "kinds": sorted(KINDS)}
    return {"kind": kind, **KINDS[kind]._asdict()}


def _folders(place: Path) -> list[Path]:
    try:
        return [path for path in place.iterdir() if path.is_dir() and not path.is_symlink()][:10000]
    except OSError:
        return []


def _rings(folder: Path) -> list[float]:
    """Return when each ring of a folder was written, in seconds since 1970."""
    try:
        return [path.stat().st_mtime for path in folder.glob("*.ring")]
    except OSError:
        return []
