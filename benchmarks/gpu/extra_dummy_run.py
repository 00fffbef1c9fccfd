"""vLLM pull request 44601 on GPUs: ``python -m benchmarks.gpu.extra_dummy_run [--runs N]``.

Two replicas of one rank that share their experts; all requests go to the first. A hang is examined
while it lasts, and again after SIGKILL. On CPUs examples/case_43547 does the same, and more.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.gpu.asking import ask, keep
from tests.gpu.deployment import options
from tests.integration.traced_server import TracedServer

PLUGIN = Path(__file__).resolve().parents[2] / "examples" / "case_43547" / "extra_dummy_run"
PROMPT = [1, 2, 3, 4, 5]
PATIENCE = 20.0
ROUNDS = 20


def run(number: int) -> bool:
    """Serve once with the change; return whether it hung."""
    search = [str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"NCCLSCOPE_EXTRA_DUMMY_RUN": "1", "PYTHONPATH": os.pathsep.join(search)}
    given = options(eager=True, shape=(1, 2), memory=0.12, environment=environment)
    with tempfile.TemporaryDirectory() as directory:
        traced = TracedServer(Path(directory), **given)
        with traced.server as server:
            try:
                for _ in range(ROUNDS):
                    server.complete(PROMPT, max_tokens=12, timeout=PATIENCE, replica=0)
            except TimeoutError:
                pass
            else:
                status, document = traced.diagnose()
                print(f"run {number}: all answered; {document['status']}, status {status}")
                return False
            case = f"extra_dummy_run-{number}"
            attached = ask(case, "attach", "attach", *server.worker_pids())
            traced.kill_workers()
        found = ask(case, "diagnose", "diagnose", traced.rings)
        for name, document in (("attach", attached), ("diagnose", found)):
            verdict = document["verdict"]
            keep(case, f"{name}.json", str(document))
            print(f"run {number}: hung; {name}: {verdict['kind']}: {verdict['summary']}")
    return True


def main() -> int:
    """Run and count."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu.extra_dummy_run", description=__doc__)
    parser.add_argument("--runs", type=int, default=1)
    arguments = parser.parse_args()
    hung = sum(run(number) for number in range(1, arguments.runs + 1))
    print(f"hung in {hung} of {arguments.runs} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
