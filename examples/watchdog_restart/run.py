"""A vLLM server that hangs, is examined, ended, and serves again, with nobody at the keyboard.

    python examples/watchdog_restart/run.py [DIR]

Needs the environment of `make test-vllm`. With DIR the bundle and the server's log are kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.integration.traced_server import NCCLSCOPE, TracedServer  # noqa: E402

PROMPT = [1, 2, 3, 4, 5]
TOKENS = 12
HUNG_SECONDS = 5.0
"""Seconds after which a call that does not complete is a hang; divergence is found at once."""
_END_SECONDS = 60.0

_began = time.monotonic()


def say(text: str) -> None:
    """Print a line of the story, with its time."""
    print(f"{time.monotonic() - _began:6.1f} s  {text}", flush=True)


def watch(traced: TracedServer, directory: Path) -> subprocess.Popen[str]:
    """Start the watch that keeps what a hang leaves and ends the hung workers."""
    return subprocess.Popen(
        [
            *(*NCCLSCOPE, "watch", str(traced.rings), "--json", "--stall", str(HUNG_SECONDS)),
            *("--bundle", str(directory / "bundles"), "--kill"),
            *("--on-hang", f"echo $NCCLSCOPE_BUNDLE > {directory / 'bundle-path'}"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def follow(program: subprocess.Popen[str], statuses: list[str]) -> None:
    """Note each status that the watch prints."""
    assert program.stdout is not None
    for line in program.stdout:
        document = json.loads(line)
        statuses.append(document["status"])
        verdict = document["verdict"]
        say(f"watch: {document['status']}" + (f": {verdict['summary']}" if verdict else ""))


def supervise(traced: TracedServer) -> None:
    """Wait until the server has ended and start it anew, as systemd or Kubernetes does."""
    status = traced.server.wait(_END_SECONDS)
    say(f"supervisor: the server has ended with status {status}; it is started anew")
    traced.server.kill()  # what hung workers leave in shared memory
    traced.server.start()


def main() -> int:
    """Serve, hang, restart and serve again."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", nargs="?", type=Path, help="keep the files here")
    given = parser.parse_args().directory
    with ExitStack() as stack:
        if given is None:
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="watchdog-"))
            directory = Path(name)
        else:
            directory = given.absolute()
            directory.mkdir(parents=True, exist_ok=True)
        traced = TracedServer(directory)
        program = watch(traced, directory)
        stack.callback(program.wait)
        stack.callback(program.kill)
        statuses: list[str] = []
        follower = threading.Thread(target=follow, args=(program, statuses), daemon=True)
        follower.start()
        say("a vLLM server with two workers is started")
        stack.enter_context(traced.server)
        before = traced.server.complete(PROMPT, TOKENS)
        workers = traced.server.worker_pids()
        say(f"it serves; workers {workers}; rank 1 is about to leave one all_reduce out")
        traced.plant("skip")
        try:
            traced.server.complete(PROMPT, TOKENS, timeout=30)
            say("the request was answered, which it should not have been")
            return 1
        except (OSError, RuntimeError) as error:
            say(f"the request failed: {type(error).__name__}")
        supervise(traced)
        after = traced.server.complete(PROMPT, TOKENS)
        say(f"it serves again; workers {traced.server.worker_pids()}")
        bundle = Path((directory / "bundle-path").read_text().strip())
        verdict = json.loads((bundle / "verdict.json").read_text())["verdict"]
        say(f"kept in {bundle.name}: {verdict['kind']}, rank {verdict['diverging_ranks']}")
        again = subprocess.run(
            [*NCCLSCOPE, "diagnose", str(bundle)], capture_output=True, text=True, check=False
        )
        print(again.stdout)
        well = (
            before == after
            and "diverged" in statuses
            and verdict["diverging_ranks"] == [1]
            and again.returncode == 1
            and not set(workers) & set(traced.server.worker_pids())
        )
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
