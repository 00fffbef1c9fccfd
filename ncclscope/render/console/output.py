"""Output of ``ncclscope watch``: lines of text or JSON, or one verdict for each hang."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ncclscope.procfs import start_ticks
from ncclscope.render.console.terminal import stderr_console
from ncclscope.render.console.verdict import print_verdict
from ncclscope.render.console.watch import one_line
from ncclscope.stamp import stamped
from ncclscope.untrusted import printable
from ncclscope.watch.poll import Poll


class Output(contextlib.AbstractContextManager["Output"]):
    """Interface that shows samples of a job and waits between them."""

    in_trouble = False
    """Whether the last sample shown is a divergence or a hang."""

    def show(self, poll: Poll) -> None:
        """Show a sample."""
        raise NotImplementedError

    def wait(self, seconds: float) -> bool:
        """Wait for ``seconds``; return whether the user wants to see more."""
        time.sleep(max(0.0, seconds))
        return True

    def say(self, text: str) -> None:
        """Show a message that is not part of the result."""
        print(f"ncclscope: {printable(text)}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Leave the terminal to another program inside the block."""
        yield

    def __exit__(self, *_exception: object) -> None:
        return None


class Lines(Output):
    """One line whenever the status changes, for programs and logs.

    Args:
        as_json: Whether each line is a JSON document.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def show(self, poll: Poll) -> None:
        if not poll.changed or poll.verdict is None:
            return
        if self._as_json:
            document = {**poll.verdict.to_dict(), "activity": poll.activity}
            json.dump(stamped(document), sys.stdout)
            print(flush=True)
        else:
            print(time.strftime("%H:%M:%S"), one_line(poll), flush=True)


class Explanations(Output):
    """The screen of the verdict at each divergence or hang, in the log of the job itself.

    Args:
        pid: Process after whose end nobody is left to read it; None to go on for ever.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid
        self._begun = start_ticks(pid) if pid is not None else 0
        self._troubled: set[Path] = set()

    def show(self, poll: Poll) -> None:
        rings = {cursor.path for cursor in poll.ranks}
        if poll.news and poll.verdict is not None:
            print_verdict(poll.verdict, stderr_console())
            self._troubled = rings
        elif self.in_trouble and not poll.in_trouble and poll.activity != "over":
            if rings - self._troubled and self._troubled - rings:
                self.say("the job was restarted: new processes replace those of this verdict")
            else:
                self.say("the job moves on: who was waited for was late")
        self.in_trouble = poll.in_trouble or (self.in_trouble and poll.activity == "over")

    def wait(self, seconds: float) -> bool:
        super().wait(seconds)
        return self._pid is None or start_ticks(self._pid) == self._begun > 0
