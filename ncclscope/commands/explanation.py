"""``python -m ncclscope.commands.explanation DIR [--json]``, for :mod:`ncclscope.explanation`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

_WIDTH = 100


def main(arguments: Sequence[str]) -> int:
    """Print the verdict on a live job: its screen, or both its screen and its JSON as JSON."""
    from ncclscope.engine.verdict import diagnose
    from ncclscope.errors import NcclscopeError
    from ncclscope.readers import open_run
    from ncclscope.render.console.terminal import plain_text
    from ncclscope.render.console.verdict import render_verdict
    from ncclscope.store.entry import ALARM, mark
    from ncclscope.watch.watch import Watcher

    directory, *options = arguments
    mark(Path(directory), ALARM)  # the text names the directory, so what is there has to stay
    try:
        verdict = Watcher(Path(directory)).poll().verdict or diagnose(open_run(directory))
    except NcclscopeError as error:
        text, document = f"ncclscope: no verdict: {error}\n", {}
    else:
        document = verdict.to_dict()
        if verdict.status in ("diverged", "hung"):
            text = plain_text(render_verdict(verdict, _WIDTH), _WIDTH) + "\n"
        else:
            # It is asked since something went wrong: OK alone would read as if nothing had.
            why = "not explained by the recorded calls: " if verdict.status == "ok" else ""
            text = f"ncclscope: {why}{verdict.status}: {verdict.summary}\n"
        text += f"ncclscope: more: ncclscope attach, or ncclscope diagnose {directory}\n"
    print(json.dumps({"text": text, "document": document}) if options else text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
