"""Makes recordings that ship: of the demonstration, and of a notebook's program.

``python -m tests.support.recording`` runs the demonstration, real processes over gloo, for
``ncclscope demo`` where torch is not installed. ``python -m tests.support.recording RINGS TARGET``
takes rings that are there. Host names and folders are left out.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.programs import ROOT

__all__ = ["main", "store"]

TARGET = ROOT / "ncclscope" / "lab" / "recording"


def main() -> None:
    """Write one trace for each rank."""
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[1:]:
            store(Path(sys.argv[1]), Path(sys.argv[2]))
        else:
            _run("demo", "--dir", Path(folder, "rings"))
            store(Path(folder, "rings"), TARGET)


def store(rings: Path, target: Path) -> None:
    """Write the traces of some rings without host names and folders."""
    with tempfile.TemporaryDirectory() as folder:
        traces = Path(folder, "traces")
        _run("export", rings, "--format", "jsonl", "-o", traces)
        target.mkdir(exist_ok=True)
        for trace in sorted(traces.iterdir()):
            lines = [_public(json.loads(line)) for line in trace.read_text("utf-8").splitlines()]
            text = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines)
            packed = gzip.compress(text.encode(), 9, mtime=0)
            (target / f"{trace.name}.gz").write_bytes(packed)


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
