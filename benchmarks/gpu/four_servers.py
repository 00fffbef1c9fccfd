"""Four vLLM servers that share their experts on one GPU, and the verdicts on them.

    python -m benchmarks.gpu.four_servers --nccl /tmp/libnccl.so.2 --keep DIR [PART ...]

Each server is a process tree of its own, as under an external load balancer: DP=4, one rank each.
A part starts the servers anew and ends in a hang: `skip` and `swap` are mistakes of rank 1. Before
that the first part serves, rests, and has rank 1 stopped by a signal and go on. NCCL has to be 2.31
or newer. Without a GPU two servers of vLLM's CPU build run, which know `uneven` only. `--graphs` is
vLLM's default configuration: compiled, in CUDA graphs; `healthy` ends a part without a mistake.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from tests.gpu.deployment import in_shared_memory, options
from tests.gpu.hangs import answer_of
from tests.integration.traced_server import NCCLSCOPE, TracedServer
from tests.integration.vllm_server import VllmServer

PROMPT = [1, 2, 3, 4, 5]
START = 400.0
"""Seconds until servers are healthy, at most: four that start at once on one GPU take 150."""
PATIENCE = 20.0
"""Seconds after which a request is not waited for any longer."""


class Servers:
    """Servers of one replica each that were started apart.

    Args:
        directory: Where their files go.
        rings: Where all of them record.
        nccl: A library that is preloaded; empty for the one that torch brings.
        eager: Without torch.compile and CUDA graphs.
    """

    def __init__(self, directory: Path, rings: Path, nccl: str, eager: bool) -> None:
        self.rings = rings
        on_gpu = torch.cuda.is_available()
        self.ranks = range(4 if on_gpu else 2)
        given = options(eager=eager, shape=(1, 1), memory=0.15, shared=True)
        port = 13345 + os.getpid() % 1000
        self.traced = []
        for rank in self.ranks:
            own = directory / f"rank-{rank}"
            own.mkdir(parents=True)
            replica = [
                *("--data-parallel-size", str(len(self.ranks))),
                *("--data-parallel-rank", str(rank)),
                *("--data-parallel-address", "127.0.0.1"),
                *("--data-parallel-rpc-port", str(port)),
            ]
            environment = {**given["environment"], **_sharing(nccl)} if on_gpu else None
            self.traced.append(
                TracedServer(
                    own,
                    rings=rings,
                    **{
                        **given,
                        "environment": environment or given["environment"],
                        "arguments": [*given["arguments"], *replica],
                    },
                )
            )

    @property
    def servers(self) -> list[VllmServer]:
        """One for each rank."""
        return [each.server for each in self.traced]

    def __enter__(self) -> Servers:
        try:
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda server: server.start(START), self.servers))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda server: server.kill(), self.servers))

    @contextlib.contextmanager
    def asked(self, count: int) -> Iterator[list[Any]]:
        """Have each server answer requests meanwhile; yields the answers, which come to be."""
        with ThreadPoolExecutor(count * len(self.ranks)) as pool:
            pending = [
                pool.submit(server.complete, PROMPT, 24, 120.0)
                for server in self.servers
                for _ in range(count)
            ]
            answers: list[Any] = []
            yield answers
            answers += [one.result() for one in pending]

    def answers_in_time(self) -> bool:
        """Return whether each server answers one request."""
        with ThreadPoolExecutor() as pool:
            pending = [pool.submit(one.complete, PROMPT, 8, PATIENCE) for one in self.servers]
            with contextlib.suppress(TimeoutError):
                return all(one.result() for one in pending)
        return False

    def stop_rank(self, rank: int, number: int) -> None:
        """Send a signal to the process that is this rank."""
        titles = self.servers[rank]._titled("VLLM::")
        engines = [pid for title, pid in titles.items() if "Worker" in title] or [
            pid for title, pid in titles.items() if "EngineCore" in title
        ]
        os.kill(engines[0], number)


def _sharing(nccl: str) -> dict[str, str]:
    """Variables under which ranks of NCCL share a GPU."""
    preload = {"LD_PRELOAD": nccl, "VLLM_NCCL_SO_PATH": nccl} if nccl else {}
    return {"CUDA_VISIBLE_DEVICES": "0", "NCCL_MULTI_RANK_GPU_ENABLE": "1", **preload}


def ask(keep: Path, name: str, *words: str) -> dict[str, Any]:
    """Ask a command, keep its screen and its document, and print what counts."""
    keep.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with (keep / f"{name}.json").open("w") as document:
        done = subprocess.run(
            [*NCCLSCOPE, *words, "--json"], stdout=document, stderr=subprocess.PIPE, check=False
        )
    text = (keep / f"{name}.json").read_text()
    if not text:
        print(json.dumps({"asked": name, "status": done.returncode, "says": done.stderr.decode()}))
        return {}
    found: dict[str, Any] = json.loads(text)
    row = {"asked": name, "took": round(time.monotonic() - begun, 1), **answer_of(found)}
    row["exit"] = done.returncode
    row["ranks_read"] = found["ranks"]["read"]
    row["says"] = (found.get("verdict") or found)["summary"]
    print(json.dumps(row), flush=True)
    return found


def serve(servers: Servers, keep: Path) -> None:
    """Ask under load, at rest, and while rank 1 is stopped."""
    with servers.asked(2):
        pass  # the first requests wait for kernels to be compiled
    with servers.asked(4) as answers:
        ask(keep, "busy-attach", "attach")
    print(json.dumps({"answers": len(answers)}))
    time.sleep(3.0)
    ask(keep, "idle-attach", "attach")
    ask(keep, "idle-watch", "watch", "--once", str(servers.rings))
    with servers.asked(1):
        servers.stop_rank(1, signal.SIGSTOP)
        try:
            time.sleep(12.0)
            ask(keep, "stopped-attach", "attach")
            ask(keep, "stopped-watch", "watch", "--once", str(servers.rings))
            ask(keep, "stopped-diagnose", "diagnose", str(servers.rings))
        finally:
            servers.stop_rank(1, signal.SIGCONT)
    ask(keep, "went-on-diagnose", "diagnose", str(servers.rings))


def hang(servers: Servers, keep: Path, fault: str) -> None:
    """Have rank 1 make a mistake, and ask."""
    servers.traced[1].plant(fault)
    hung = not servers.answers_in_time()
    print(json.dumps({"fault": fault, "hung": hung}), flush=True)
    ask(keep, f"{fault}-attach", "attach")
    ask(keep, f"{fault}-watch", "watch", "--once", str(servers.rings))
    ask(keep, f"{fault}-diagnose", "diagnose", str(servers.rings))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["skip"], metavar="PART")
    parser.add_argument("--nccl", default="", metavar="FILE", help="library that is preloaded")
    parser.add_argument("--keep", type=Path, required=True, metavar="DIR", help="for answers")
    parser.add_argument("--graphs", action="store_true", help="compiled, in CUDA graphs")
    given = parser.parse_args(arguments)
    for number, fault in enumerate(given.parts):
        begun = time.monotonic()
        with (
            in_shared_memory() as rings,
            Servers(given.keep / fault, rings, given.nccl, not given.graphs) as servers,
        ):
            print(json.dumps({"part": fault, "healthy_after": round(time.monotonic() - begun)}))
            if number == 0:
                serve(servers, given.keep)
            else:
                servers.answers_in_time()
            if fault != "healthy":
                hang(servers, given.keep, fault)
        print(json.dumps({"part": fault, "seconds": round(time.monotonic() - begun)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
