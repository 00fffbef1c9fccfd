"""Run a part of the corpus: ``python -m tests.corpus programs | build | score ...``."""

from __future__ import annotations

import importlib
import sys

COMMANDS = {
    "programs": "tests.corpus.runner.command",
    "build": "tests.corpus.build",
    "score": "tests.corpus.score",
}


def main() -> int:
    """Call ``main`` of the command's module with the remaining arguments."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        print(f"usage: python -m tests.corpus {{{','.join(COMMANDS)}}} ...", file=sys.stderr)
        return 2
    return int(importlib.import_module(COMMANDS[name]).main(sys.argv[2:]) or 0)


if __name__ == "__main__":
    sys.exit(main())
