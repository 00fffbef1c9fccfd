"""Builds the site from README, docs/ and examples/, into build/site.

Run with ``make docs``. The pages keep their places, so that links between them need no change.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["main"]

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "build" / "site-sources"
_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*", "site", "*.gz", "*.ring", "workflows")


def main() -> int:
    """Copy the sources side by side and run mkdocs on them; return its exit status."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    SOURCES.mkdir(parents=True)
    for name in _PAGES:
        shutil.copy(ROOT / name, SOURCES)
    for folder in ("docs", "examples"):
        shutil.copytree(ROOT / folder, SOURCES / folder, ignore=_LEFT_OUT)
    shutil.copy(Path(__file__).with_name("api.md"), SOURCES / "docs")
    (SOURCES / "assets").mkdir()
    shutil.copy(Path(__file__).with_name("worker.js"), SOURCES / "assets")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"]
    settings = Path(__file__).with_name("mkdocs.yml")
    # The configuration names a function of hooks.py, which lies beside it.
    environment = {**os.environ, "PYTHONPATH": str(settings.parent), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([*command, "-f", settings], env=environment, check=False)
    if done.returncode == 0:
        print(f"the site is in {ROOT / 'build' / 'site'}: open index.html")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
