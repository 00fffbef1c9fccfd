"""Claim (b): what vLLM posts in steps without tokens, and what pull request 44601 would add.

    python examples/case_43547/zero_token_steps.py [DIR] [--only stock|changed] [--load ...]

Starts a server with two replicas that share their experts (DP=2, expert parallel) on the CPU, and
gives all requests to one of them. Then the same with a plugin that does what the pull request
would. The script examines a hang while it lasts, and again after SIGKILL of the workers.
Needs the environment of `make test-vllm`. With DIR logs and rings are kept.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table
from shell import NCCLSCOPE, need_vllm, parser_of, place, say, show, timed

from ncclscope import diagnose, open_run
from ncclscope.model import Rank, Run

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.integration.vllm_server import VllmServer  # noqa: E402

PLUGIN = Path(__file__).with_name("extra_dummy_run")
REQUESTS = 6
PROMPT = [1, 2, 3, 4, 5]
TOKENS = 12
"""Fewer than the 16 steps after which vLLM's engines ask each other whether any has work left."""
LOADS = {
    "one": (TOKENS,),
    "short": (TOKENS // 3,),
    "same": (TOKENS, TOKENS),
    "mixed": (2 * TOKENS, TOKENS // 2),
}
"""Tokens of each request, by replica; one that is not there never has a request."""

_LEAST_PATIENCE = 60.0


def server_in(directory: Path, changed: bool) -> VllmServer:
    """Return a traced server, with the pull request's change or without."""
    environment = {"NCCLSCOPE_VLLM_CPU_MOE": "1"}
    if changed:
        search = [str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment |= {
            "NCCLSCOPE_EXTRA_DUMMY_RUN": "1",
            "PYTHONPATH": os.pathsep.join(search),
        }
    return VllmServer(
        directory,
        tensor_parallel_size=1,
        data_parallel_size=2,
        checkpoint=True,
        prefix=[*NCCLSCOPE, "run", "--dir", str(directory / "rings"), "--"],
        environment=environment,
        arguments=["--enable-expert-parallel"],
    )


def serve(server: VllmServer, load: str, patience: float) -> int | None:
    """Send the requests, one to each replica at a time.

    Args:
        server: The server.
        load: One of ``LOADS``.
        patience: Seconds to wait for an answer.

    Returns:
        How many rounds were answered before one was not; None for all.
    """
    lengths = LOADS[load]
    with ThreadPoolExecutor(len(lengths)) as pool:
        for number in range(REQUESTS):
            asked = [
                pool.submit(server.complete, PROMPT, tokens, patience, replica=replica)
                for replica, tokens in enumerate(lengths)
            ]
            failed = [one.exception() for one in asked]
            if any(isinstance(error, TimeoutError) for error in failed):
                return number
            for error in failed:
                if error is not None:
                    raise error
    return None


def calls_by_step(run: Run, rank: Rank) -> list[tuple[bool, str]]:
    """Return for each step that is over whether it was a dummy, and what was posted in it.

    What is posted on unequal batches has another name and counts as the same here.
    """
    labels = {key: comm.label for key, comm in run.communicators.items()}
    posted = sorted(
        (call.position, f"{labels[key]} {call.op.removesuffix('v')}")
        for key, log in rank.logs.items()
        for call in log.span(log.first, log.calls + 1)
    )
    found = []
    for step, following in zip(rank.steps, rank.steps[1:], strict=False):
        within = [what for place, what in posted if step.position <= place < following.position]
        counts = sorted(Counter(within).items())
        found.append((step.dummy, ", ".join(f"{count} {what}" for what, count in counts)))
    return found


def steps_table(run: Run) -> Table:
    """Return what each rank posted in its steps."""
    table = Table(title="what was posted in each step", title_justify="left")
    for heading in ("rank", "step", "steps", "calls in each of them"):
        table.add_column(heading, justify="right" if heading == "steps" else "left")
    for rank in run.ranks:
        counts = Counter(calls_by_step(run, rank))
        for (dummy, what), count in sorted(counts.items()):
            table.add_row(str(rank.rank), "dummy" if dummy else "real", str(count), what)
    return table


def kill(server: VllmServer) -> None:
    """End the workers as no handler can prevent."""
    workers = [psutil.Process(pid) for pid in server.worker_pids()]
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
    psutil.wait_procs(workers, timeout=10)


def try_once(directory: Path, changed: bool, load: str, patience: float) -> tuple[bool, bool]:
    """Serve once; return whether it hung, and whether ncclscope saw what there was."""
    name = "with the extra dummy run" if changed else "stock"
    if not changed:
        patience = max(patience, _LEAST_PATIENCE)  # a slow answer is no hang
    timed(f"vLLM {name}, DP=2 and expert parallel, is started")
    directory.mkdir()
    with server_in(directory, changed) as server:
        for replica, tokens in enumerate(LOADS[load]):
            timed(f"{REQUESTS} requests of {tokens} tokens, one by one, for replica {replica}")
        answered = serve(server, load, patience)
        hung = answered is not None
        if not hung:
            timed("all of them were answered\n")
        else:
            timed(f"round {answered + 1} of them has had no answer for {patience:g} s\n")
            seen = show("attach", *server.worker_pids())
        kill(server)
    timed("the workers have been killed with SIGKILL\n")
    status = show("diagnose", directory / "rings")
    verdict = diagnose(open_run(directory / "rings"))
    if hung:
        return True, (seen, status) == (1, 1) and verdict.cause is not None
    Console(highlight=False, width=120).print(steps_table(verdict.run))
    say()
    return False, status == 0


def main() -> int:
    """Run both and counts."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", choices=("stock", "changed"), help="leave the other out")
    parser.add_argument(
        "--load",
        choices=tuple(LOADS),
        default="one",
        help="one: replica 1 never has a request; short: the same, three requests before the "
        "engines meet; same: both have the same; mixed: those of replica 1 are shorter "
        "(default: one)",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="for an answer (default: 20)",
    )
    parser.add_argument("--runs", type=int, default=1, help="of each (default: 1)")
    arguments = parser.parse_args()
    need_vllm()
    well = True
    with place(arguments.directory) as directory:
        lines = []
        for name in ("stock", "changed"):
            if arguments.only not in (None, name):
                continue
            hangs = 0
            for number in range(1, arguments.runs + 1):
                hung, right = try_once(
                    directory / f"{name}-{number}",
                    name == "changed",
                    arguments.load,
                    arguments.patience,
                )
                hangs += hung
                well &= right
            lines.append(f"{name}: hung in {hangs} of {arguments.runs} runs")
            # Replicas that finish alike stay in step even so.
            well &= hangs == 0 if name == "stock" else hangs > 0 or arguments.load == "same"
    for line in lines:
        say(line)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
