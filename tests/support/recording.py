"""Makes the recording that ``ncclscope demo`` shows where torch is not installed.

Run with ``python -m tests.support.recording``. It takes a run of the demonstration, real processes
over gloo, and leaves out what is this machine's: host name and folders.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.programs import ROOT

__all__ = ["main"]

TARGET = ROOT / "ncclscope" / "lab" / "recording"


def main() -> None:
    """Write one trace for each rank."""
    with tempfile.TemporaryDirectory() as folder:
        rings, traces = Path(folder, "rings"), Path(folder, "traces")
        _run("demo", "--dir", rings)
        _run("export", rings, "--format", "jsonl", "-o", traces)
        TARGET.mkdir(exist_ok=True)
        for trace in sorted(traces.iterdir()):
            lines = [_public(json.loads(line)) for line in trace.read_text("utf-8").splitlines()]
            text = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines)
            packed = gzip.compress(text.encode(), 9, mtime=0)
            (TARGET / f"{trace.name}.gz").write_bytes(packed)


def _run(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "ncclscope", *map(str, arguments)], cwd=ROOT, check=True)


def _public(line: dict[str, object]) -> dict[str, object]:
    line = {key: value for key, value in line.items() if value is not None}
    if "host" in line:
        line["host"] = "demo"
    if isinstance(site := line.get("site"), str):
        line["site"] = site.replace(f"{ROOT}/", "")
    return line


if __name__ == "__main__":
    main()
