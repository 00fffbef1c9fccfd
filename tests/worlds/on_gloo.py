"""``python -m tests.worlds.on_gloo``: hold the executor against real processes on gloo.

The programs of a world run in one process a rank. Once nothing has moved for a while, the call in
which each rank is stuck is compared with the executor's.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.worlds.executor import play
from tests.worlds.sample import sample
from tests.worlds.small import Setting, jobs
from tests.worlds.world import Act, World

__all__ = ["FAULTS", "main", "run"]

FAULTS = (
    "healthy",
    "skipped_round",
    "extra_round",
    "skipped_call",
    "extra_call",
    "other_op",
    "other_root",
    "other_redop",
    "other_comm",
    "swapped_calls",
    "swapped_comms",
    "other_size",
    "other_dtype",
    "outside",
    "early_exit",
    "raises",
    "killed",
)
STILL_SECONDS = 3.0
MOST_SECONDS = 60.0
_ORDERS = 20
_FINISHED, _ENDED = -1, -2
_TIMEOUT = timedelta(minutes=10)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 when a world comes to another end on gloo than on paper."""
    parser = argparse.ArgumentParser(prog="tests.worlds.on_gloo", description=__doc__)
    parser.add_argument("--count", type=int, default=20, metavar="N", help="worlds (default: 20)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of the worlds")
    parser.add_argument("--first", type=int, default=0, metavar="K", help="number of the first")
    parser.add_argument("--fault", default="", choices=("", *FAULTS), help="only this one")
    parser.add_argument("--small", action="store_true", help="small jobs, not random ones")
    options = parser.parse_args(arguments)
    if options.small:
        worlds = small_jobs(options.seed)
    else:
        worlds = random_jobs(options.seed, options.first, options.fault)
    agree = 0
    for name, world in itertools.islice(worlds, options.count):
        expected = all_expected_of(world)
        found = run(world)
        agree += found in expected
        word = "agrees" if found in expected else f"differs: gloo {found}, executor {expected}"
        print(f"{name}: {word}", flush=True)
    print(f"{agree} of {options.count} agree")
    return int(agree < options.count)


def random_jobs(seed: int, first: int, fault: str) -> Iterator[tuple[str, World]]:
    """Yield random jobs on gloo from a number on, each with its name."""
    for number in itertools.count(first):
        name = fault or FAULTS[number % len(FAULTS)]
        world = sample(seed, number, name, whole=True).world
        if world.backend == "gloo":
            world.severed = True
            threads = 1 + any(act.thread for program in world.programs for act in program)
            yield f"{number} {name}, {world.size} ranks, {threads} threads", world


def small_jobs(seed: int) -> Iterator[tuple[str, World]]:
    """Yield small jobs of three ranks in a random order, each with its name."""
    found = list(jobs(Setting(3, "gloo", alike=False), 3))
    random.Random(seed).shuffle(found)
    for job in found:
        if not job.absent:
            yield job.name, job.world


def all_expected_of(world: World) -> list[list[int]]:
    """Return how a world ends on paper in some orders in which its ranks may act.

    Where a process ends, it matters whether others have begun the calls that need it.
    """
    found: list[list[int]] = []
    for number in range(_ORDERS):
        ordered = copy.copy(world)
        ordered.seed = str(number)
        places = expected_of(ordered)
        if places not in found:
            found.append(places)
    return found


def expected_of(world: World) -> list[int]:
    """Return the place in its program at which each thread of each rank is stuck on paper.

    It is -1 for one that has finished, and -2 for one whose process has failed.
    """
    outcome = play(world)
    places = []
    for rank, thread in _threads(world):
        last = max(
            (k for k, act in enumerate(world.programs[rank]) if act.thread == thread), default=-1
        )
        stuck = [
            each.index
            for each in outcome.posted[rank]
            if not each.done_ns and each.act.thread == thread
        ]
        reached = outcome.reached[rank].get(thread, -1)
        if rank in outcome.ended and rank not in outcome.finished:
            places.append(_ENDED)
        elif stuck:
            places.append(stuck[0])
        elif reached == last and (last < 0 or world.programs[rank][last].is_call):
            places.append(_FINISHED)
        else:
            places.append(reached)
    return places


def _threads(world: World) -> list[tuple[int, int]]:
    """Return rank and thread of all that act."""
    return [(rank, thread) for rank in range(world.size) for thread in (0, 1)]


def run(world: World) -> list[int]:
    """Run a world in processes, and return where each is stuck, as :func:`expected_of` does."""
    context = get_context("fork")
    places = context.Array("i", [0] * world.size * 2, lock=False)
    moves = context.Array("i", [0] * world.size * 2, lock=False)
    processes: list[ForkProcess] = []
    with tempfile.TemporaryDirectory(prefix="ncclscope-worlds-") as folder:
        store = str(Path(folder, "store"))
        try:
            for rank in range(world.size):
                process = context.Process(target=_rank, args=(world, rank, store, places, moves))
                process.start()
                processes.append(process)
            _wait(moves)
            return [
                place if processes[rank].is_alive() or _through(places, rank) else _ENDED
                for place, (rank, _) in zip(places, _threads(world), strict=True)
            ]
        finally:
            for process in processes:
                process.kill()
                process.join()


def _through(places: Any, rank: int) -> bool:
    return list(places[2 * rank : 2 * rank + 2]) == [_FINISHED] * 2


def _wait(moves: Any) -> None:
    """Wait until all ranks have begun and none has moved for a while."""
    deadline = time.monotonic() + MOST_SECONDS
    seen, since = list(moves), time.monotonic()
    while time.monotonic() < deadline:
        time.sleep(0.05)
        now = list(moves)
        if now != seen or not all(now):
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > STILL_SECONDS:
            return


def _rank(world: World, rank: int, store: str, places: Any, moves: Any) -> None:
    # What a rank says when its peers are killed in the end is of no interest.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=torch._C._distributed_c10d.FileStore(store, world.size),
        rank=rank,
        world_size=world.size,
        timeout=_TIMEOUT,
    )
    groups = {
        label: dist.group.WORLD if label == "world" else dist.new_group(list(members))
        for label, members in world.comms.items()
    }
    for thread in (0, 1):
        moves[2 * rank + thread] = 1
    threads = [
        threading.Thread(target=_thread, args=(world, which, groups, places, moves), daemon=True)
        for which in ((rank, 0), (rank, 1))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not world.lingers and _through(places, rank):
        os._exit(0)
    while True:
        time.sleep(3600)


def _thread(
    world: World, which: tuple[int, int], groups: Mapping[str, Any], places: Any, moves: Any
) -> None:
    rank, thread = which
    mine = 2 * rank + thread
    batch: list[tuple[int, Any]] = []
    program = [(k, act) for k, act in enumerate(world.programs[rank]) if act.thread == thread]
    try:
        for number, (place, act) in enumerate(program):
            places[mine] = place
            if act.op == "outside":
                return
            if act.op == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if act.op == "raise":
                raise RuntimeError("loss is not finite")
            if act.batch:
                # Started together, then waited for.
                batch.append((place, _transfer(world, groups, act)))
                following = program[number + 1][1] if number + 1 < len(program) else None
                if following is None or following.batch != act.batch:
                    for places[mine], work in batch:
                        work.wait()
                        moves[mine] += 1
                    batch = []
                continue
            if act.is_p2p:
                _transfer(world, groups, act).wait()
            else:
                _collective(world, groups, act)
            moves[mine] += 1
    except Exception:
        os._exit(1)  # as an error of the main thread does, and the executor takes all for such
    places[mine] = _FINISHED


def _transfer(world: World, groups: Mapping[str, Any], act: Act) -> Any:
    peer = world.comms[act.comm][act.peer or 0]
    tensor = _tensor(act)
    call = dist.isend if act.op == "send" else dist.irecv
    return call(tensor, peer, group=groups[act.comm])


def _collective(world: World, groups: Mapping[str, Any], act: Act) -> None:
    group, members = groups[act.comm], world.comms[act.comm]
    redop = dist.ReduceOp.MAX if act.redop == "max" else dist.ReduceOp.SUM
    if act.op == "barrier":
        dist.barrier(group)
        return
    tensor = _tensor(act)
    rows, *rest = tensor.shape
    if act.op == "all_reduce":
        dist.all_reduce(tensor, redop, group)
    elif act.op == "broadcast":
        dist.broadcast(tensor, members[act.root or 0], group)
    elif act.op == "all_gather":
        dist.all_gather_into_tensor(tensor.new_empty(rows * len(members), *rest), tensor, group)
    elif act.op == "reduce_scatter":
        out = tensor.new_empty(rows // len(members), *rest)
        dist.reduce_scatter_tensor(out, tensor, redop, group)
    else:
        dist.all_to_all_single(torch.empty_like(tensor), tensor, group=group)


def _tensor(act: Act) -> Any:
    return torch.ones(act.shape, dtype=getattr(torch, act.dtype))


if __name__ == "__main__":
    sys.exit(main())
