"""`ncclscope collect` of two jobs that exchange transfers: what it keeps gives the same verdict."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import fork_server
from tests.support.programs import ROOT

PROGRAM = textwrap.dedent("""
    import sys
    from ncclscope import Tracer
    from ncclscope.model import Transfer
    from ncclscope.ring.transfers import TransferTable
    directory, name, direction, peer = sys.argv[1:]
    details = {"run": name, "kv_engine": {"id": name, "connector": "NixlConnector"}}
    tracer = Tracer(directory, rank=0, world_size=1, details=details)
    table = TransferTable(tracer.ring.path, tracer.ring.geometry)
    phase = "read" if peer else "held"
    table.put(Transfer("p1", name, direction, request=f"{name}-1", peer=peer, phase=phase))
    print("ready", flush=True)
    sys.stdin.read()
""")


def engine(directory: Path, *words: str) -> subprocess.Popen[str]:
    """Start a process with one end of a transfer."""
    found = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(directory), *words],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert found.stdout is not None
    assert found.stdout.readline() == "ready\n"
    return found


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[list[Path]]:
    """Yield the directories of a killed sender and of a receiver that still waits for it."""
    directories = [tmp_path / "prefill", tmp_path / "decode"]
    sender = engine(directories[0], "prefill-0", "send", "")
    receiver = engine(directories[1], "decode-0", "recv", "prefill-0")
    try:
        sender.kill()
        sender.wait()
        yield directories
    finally:
        for one in (sender, receiver):
            one.kill()
            one.communicate()


def ncclscope(*words: object) -> subprocess.CompletedProcess[str]:
    return fork_server.run(
        [sys.executable, "-m", "ncclscope", *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def diagnosed(*paths: Path) -> dict[str, Any]:
    done = ncclscope("diagnose", *paths, "--json")
    assert done.returncode == 1, done.stderr
    verdict: dict[str, Any] = json.loads(done.stdout)["verdict"]
    return verdict


def without_times(verdict: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that do not depend on the time of the command."""
    transfer = {**verdict["transfer"], "waited_seconds": None}
    summary = verdict["summary"].partition("has waited")
    missing = summary[2].partition("for KV blocks:")[2]
    return {
        "kind": verdict["kind"],
        "confidence": verdict["confidence"],
        "summary": [summary[0], missing],
        "transfer": transfer,
    }


def test_a_bundle_of_two_directories_gives_the_verdict_that_they_give(
    engines: list[Path], tmp_path: Path
) -> None:
    first = diagnosed(*engines)
    assert "the sending engine prefill-0" in first["summary"]
    assert "has ended" in first["summary"]
    assert first["confidence"] == "certain"

    bundle = tmp_path / "bundle"
    done = ncclscope("collect", "--local", *engines, "-o", bundle, "--no-stacks")
    assert done.returncode == 0, done.stderr
    assert without_times(diagnosed(bundle)) == without_times(first)
