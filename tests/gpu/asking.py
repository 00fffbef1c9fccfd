"""Runs ncclscope, and keeps its output, where NCCLSCOPE_TRANSCRIPTS names a directory for it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.integration.traced_server import NCCLSCOPE

__all__ = ["ask", "keep"]

DIRECTORY = "NCCLSCOPE_TRANSCRIPTS"


def keep(case: str, name: str, text: str) -> None:
    """Write a file of a case; nothing where no directory was named."""
    directory = os.environ.get(DIRECTORY)
    if directory:
        path = Path(directory) / case / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def ask(case: str, name: str, *words: object) -> dict[str, Any]:
    """Run a command that is to find something: once for a person, to be kept, once for a test."""
    command = [*NCCLSCOPE, *map(str, words)]
    environment = {**os.environ, "COLUMNS": "100"}
    shown = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    keep(case, f"{name}.txt", f"$ ncclscope {words[0]}\n{shown.stdout}{shown.stderr}")
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document
