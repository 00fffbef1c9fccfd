"""Where looks at a watched job are shown."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator

from ncclscope.render.console.watch import one_line
from ncclscope.watch.watch import Poll

__all__ = ["Lines", "Output"]


class Output(contextlib.AbstractContextManager["Output"]):
    """Shows looks, and waits for the next one."""

    in_trouble = False
    """Whether the last that was shown is a divergence or a hang."""

    def show(self, poll: Poll) -> None:
        """Shows one."""
        raise NotImplementedError

    def wait(self, seconds: float) -> bool:
        """Waits; returns whether there is anybody who wants to see more."""
        time.sleep(max(0.0, seconds))
        return True

    def say(self, text: str) -> None:
        """Tells a person something besides."""
        print(f"ncclscope: {text}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Leaves the terminal to other programs for a while."""
        yield

    def __exit__(self, *_exception: object) -> None:
        return None


class Lines(Output):
    """A line whenever the status changes, for programs and logs.

    Args:
        as_json: Whether each line is a document.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def show(self, poll: Poll) -> None:
        if not poll.changed or poll.verdict is None:
            return
        if self._as_json:
            about = {"activity": poll.activity, "time_ns": time.time_ns()}
            json.dump({**poll.verdict.to_dict(), **about}, sys.stdout)
            print(flush=True)
        else:
            print(time.strftime("%H:%M:%S"), one_line(poll), flush=True)
