"""Four gloo processes for each scenario, and the Flight Recorder dumps that they leave.

Run as a program: ``python flight_recorder_programs.py DIRECTORY SCENARIO...``. torch is imported
once, and each rank is a fork. Ranks dump when all that live have posted what the scenario
has, and end without clean-up, since some of them wait in a call for ever.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

WORLD = 4
SECONDS = 100
"""How long a scenario may take, for one that hangs is an error; each takes less than one alone."""


class Rank:
    """One rank at work.

    Attributes:
        rank: Its number.
        pair: Ranks 0 and 1, or 2 and 3.
        other: A second group of all ranks.
    """

    def __init__(self, rank: int, directory: Path) -> None:
        self.rank = rank
        self.directory = directory
        self.store = dist.FileStore(str(directory / "store"), WORLD)
        self.store.set_timeout(timedelta(seconds=SECONDS))
        dist.init_process_group("gloo", rank=rank, world_size=WORLD, store=self.store)
        pairs = [dist.new_group(list(pair), group_desc="tp") for pair in ((0, 1), (2, 3))]
        self.pair = pairs[rank // 2]
        self.other = dist.new_group(list(range(WORLD)), group_desc="ep")
        self.works: list[Any] = []
        self._returns = False

    def reduce(self, *shape: int, group: Any = None, dtype: Any = torch.float32) -> None:
        tensor = torch.ones(shape, dtype=dtype)
        self._keep(dist.all_reduce(tensor, group=group, async_op=self._returns))

    def gather(self, *shape: int, group: Any = None) -> None:
        own = torch.ones(shape)
        out = [torch.empty(shape) for _ in range(dist.get_world_size(group))]
        self._keep(dist.all_gather(out, own, group=group, async_op=self._returns))

    def reduce_to_one(self, *shape: int) -> None:
        self._keep(dist.reduce(torch.ones(shape), 0, async_op=self._returns))

    def spread(self, *shape: int) -> None:
        self._keep(dist.broadcast(torch.ones(shape), 0, async_op=self._returns))

    def _keep(self, work: Any) -> None:
        if work is not None:
            self.works.append(work)

    def pending(self, call: Callable[..., None], *arguments: Any, **options: Any) -> None:
        """Post a call that does not complete, without waiting for it."""
        if not self.works:
            self.settle()  # else an earlier call may look as if it were pending, too
        before = recorded()
        self._returns = True
        call(*arguments, **options)
        self._returns = False
        while recorded() == before:
            time.sleep(0.005)

    def steps(self, count: int = 3) -> None:
        """What a healthy program does."""
        for step in range(count):
            self.reduce(8 + step, 2)
            self.reduce(4, 2, group=self.pair)
            self.gather(4, 2)
            dist.broadcast(torch.ones(6), 0)

    def settle(self) -> None:
        """Wait until the recorder knows that all has completed, a moment after the caller does."""
        while not all(entry["retired"] for entry in entries()):
            time.sleep(0.005)

    def meet(self, word: str, who: set[int]) -> None:
        """Wait for other ranks outside of any recorded call."""
        self.store.set(f"{word}{self.rank}", "here")
        self.store.wait([f"{word}{rank}" for rank in sorted(who)])

    def dump(self, **options: bool) -> None:
        take = torch._C._distributed_c10d._dump_fr_trace
        wanted = {"includeCollectives": True, "includeStackTraces": True, "onlyActive": False}
        data = take(**(wanted | options))
        (self.directory / f"comm_lib_trace_rank_{self.rank}").write_bytes(data)

    def dump_json(self) -> None:
        take = torch._C._distributed_c10d._dump_fr_trace_json
        data = take(includeCollectives=True, onlyActive=False)
        data = data if isinstance(data, bytes) else data.encode()
        (self.directory / f"fr_trace_rank_{self.rank}.json").write_bytes(data)


def entries() -> list[dict[str, Any]]:
    """Return the recorder's entries."""
    take = torch._C._distributed_c10d._dump_fr_trace_json
    return list(json.loads(take(includeCollectives=True, onlyActive=False)).get("entries", ()))


def recorded() -> int:
    """Number of the last call that the recorder has; -1 for none."""
    return max((entry["record_id"] for entry in entries()), default=-1)


# --- scenarios -------------------------------------------------------------------------------


def healthy(rank: Rank) -> None:
    rank.steps()
    dist.barrier()


def healthy_json(rank: Rank) -> None:
    healthy(rank)


def wrong_op(rank: Rank) -> None:
    rank.steps()
    rank.pending(rank.reduce_to_one if rank.rank == 3 else rank.reduce, 4, 2)


def wrong_op_json(rank: Rank) -> None:
    wrong_op(rank)


def wrong_size(rank: Rank) -> None:
    rank.steps()
    dist.broadcast(torch.ones(5 if rank.rank == 3 else 4), 0)  # rank 3 passes it on to nobody


def wrong_dtype(rank: Rank) -> None:
    rank.steps()
    # As many bytes: gloo ends a process that receives more than it expects.
    size, dtype = (128, torch.float64) if rank.rank == 0 else (256, torch.float32)
    rank.pending(rank.reduce, size, dtype=dtype)


def absent(rank: Rank) -> None:
    rank.steps()
    if rank.rank != 1:
        rank.pending(rank.reduce, 4, 2)


def absent_active(rank: Rank) -> None:
    absent(rank)


def absent_and_wrong(rank: Rank) -> None:
    rank.steps()
    if rank.rank != 1:
        rank.pending(rank.reduce_to_one if rank.rank == 3 else rank.reduce, 4, 2)


def skip(rank: Rank) -> None:
    rank.steps(1)
    # No two in a row are the same operation, or gloo would make a pair of them.
    for step in range(6):
        if (rank.rank, step) != (2, 2):
            rank.pending((rank.reduce, rank.gather, rank.spread)[step % 3], 10 + step, 2)


def skip_of_equals(rank: Rank) -> None:
    for step in range(4):
        dist.all_reduce(torch.ones(4, 2))
        if (rank.rank, step) != (2, 1):
            dist.all_reduce(torch.ones(4, 2))  # THE ONE
        if step < 3:
            dist.all_reduce(torch.ones(4, 2))
    if rank.rank == 2:
        dist.all_reduce(torch.ones(4, 2))
    else:
        rank.pending(rank.reduce, 4, 2)


def extra(rank: Rank) -> None:
    rank.steps(1)
    for step in range(6):
        if (rank.rank, step) == (1, 2):
            rank.pending(rank.gather, 3, 2)
        rank.pending((rank.reduce, rank.gather, rank.spread)[step % 3], 10 + step, 2)


def pair_mismatch(rank: Rank) -> None:
    rank.steps()
    if rank.rank < 2:
        rank.reduce(4, 2, group=rank.pair)
        rank.pending(rank.reduce, 6)
    else:
        rank.pending(rank.gather if rank.rank == 3 else rank.reduce, 4, 2, group=rank.pair)


def pair_absent(rank: Rank) -> None:
    rank.steps()
    if rank.rank < 2:
        rank.reduce(4, 2, group=rank.pair)
        rank.pending(rank.reduce, 6)
    elif rank.rank == 2:
        rank.pending(rank.reduce, 4, 2, group=rank.pair)


def circle(rank: Rank) -> None:
    for _ in range(3):
        rank.reduce(4)
        rank.gather(2, group=rank.other)
    if rank.rank == 3:
        rank.pending(rank.gather, 2, group=rank.other)
    else:
        rank.pending(rank.reduce, 4)


def circle_of_pairs(rank: Rank) -> None:
    for _ in range(3):
        rank.reduce(4)
        rank.gather(2, group=rank.pair)
    if rank.rank == 3:
        rank.pending(rank.gather, 2, group=rank.pair)
    else:
        rank.pending(rank.reduce, 4)


def killed(rank: Rank) -> None:
    rank.steps()
    rank.meet("done", set(range(WORLD)))  # what rank 2 has sent may be lost with it
    if rank.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    rank.pending(rank.reduce, 4, 2)


def lost_dump(rank: Rank) -> None:
    rank.steps()
    rank.settle()


def wrapped(rank: Rank) -> None:
    for step in range(20):
        rank.reduce(4 + step % 3)
        for _ in range(3 if rank.rank < 2 else 1):
            rank.reduce(2, 2, group=rank.pair)


def wrapped_away(rank: Rank) -> None:
    rank.reduce(4, group=rank.pair)
    for _ in range(40 if rank.rank < 2 else 20):
        rank.gather(3, group=rank.pair)
    for step in range(20 if rank.rank < 2 else 10):
        if step % 2:
            rank.reduce(2, 2, group=rank.pair)
    rank.reduce(9)


def wrapped_wrong(rank: Rank) -> None:
    wrapped(rank)
    rank.pending(rank.gather if rank.rank == 0 else rank.reduce, 4, 2)


def uneven(rank: Rank) -> None:
    rows = {0: [1, 2, 0, 3], 1: [0, 0, 4, 1], 2: [2, 2, 2, 2], 3: [0, 5, 0, 0]}
    for _ in range(3):
        own = rows[rank.rank]
        theirs = [rows[peer][rank.rank] for peer in range(WORLD)]
        dist.all_to_all_single(torch.empty(sum(theirs), 3), torch.ones(sum(own), 3), theirs, own)
        rank.reduce(4)


def send_and_receive(rank: Rank) -> None:
    rank.steps(1)
    for _ in range(2):
        if rank.rank == 0:
            dist.send(torch.ones(3), 1)
        elif rank.rank == 1:
            dist.recv(torch.ones(3), 0)
        rank.reduce(4)


def root_collectives(rank: Rank) -> None:
    for root in (0, 2):
        own = torch.ones(3)
        many = [torch.ones(3) for _ in range(WORLD)]
        dist.gather(own, many if rank.rank == root else None, dst=root)
        dist.scatter(own, many if rank.rank == root else None, src=root)
        dist.reduce(own, root)
    dist.reduce_scatter(torch.empty(3), [torch.ones(3) for _ in range(WORLD)])


def running(rank: Rank) -> None:
    for step in range(40):
        rank.reduce(4 + step)
        if step == 10 + 6 * rank.rank:
            rank.dump(includeStackTraces=False)


def under_way(rank: Rank) -> None:
    rank.steps()
    rank.works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(4)]


def swapped(rank: Rank) -> None:
    for _ in range(4):
        rank.reduce(4)
        rank.gather(2, group=rank.other)
    for step in range(5):
        odd = rank.rank == 3 and step in (1, 2)
        rank.pending(rank.reduce, 4, group=rank.other if odd else None)
        rank.pending(rank.gather, 2, group=rank.other)


JSON = {"healthy_json", "wrong_op_json", "wrong_size", "send_and_receive", "uneven"}
STACKS = {"healthy", "wrong_op", "absent", "skip_of_equals", "circle"}
ACTIVE = {"absent_active"}
SMALL = {"wrapped", "wrapped_away", "wrapped_wrong"}
KILLED = {"killed": 2}
LOST = {"lost_dump": 1}


def play(name: str, number: int, directory: Path) -> None:
    """Run one rank of a scenario; do not return."""
    signal.alarm(SECONDS)
    os.environ["TORCH_FR_BUFFER_SIZE"] = "32" if name in SMALL else "2000"
    rank = Rank(number, directory)
    globals()[name](rank)
    living = set(range(WORLD)) - {KILLED.get(name, -1)}
    rank.meet("posted", living)
    if name in JSON:
        rank.dump_json()
    elif name != "running" and LOST.get(name) != number:
        rank.dump(includeStackTraces=name in STACKS, onlyActive=name in ACTIVE)
    rank.meet("dumped", living)
    os._exit(0)


def main(directory: Path, names: list[str]) -> None:
    """Play one scenario after another."""
    warnings.simplefilter("ignore")
    # The first dump with stacks imports it: a second and a half of work, in each of the ranks.
    importlib.import_module("torch._inductor.codecache")
    torch.set_num_threads(1)
    for name in names:
        own = directory / name
        own.mkdir(parents=True)
        children = []
        for number in range(WORLD):
            child = os.fork()
            if child == 0:
                try:
                    play(name, number, own)
                except BaseException as error:
                    print(f"{name}, rank {number}: {error}", file=sys.stderr)
                os._exit(1)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        (own / "store").unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
