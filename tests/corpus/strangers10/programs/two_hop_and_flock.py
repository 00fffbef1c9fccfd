"""Context parallel ranks 0 to 3 pass keys round a ring; ranks 4 to 7 retrieve from an index."""

import fcntl
import pathlib
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, EACH, WIDTH = 10, 4, 6


class Ring:
    def __init__(self, rank: int, group: dist.ProcessGroup, window: int) -> None:
        self.rank, self.group, self.window = rank, group, window
        self.right, self.left = (rank + 1) % EACH, (rank - 1) % EACH

    def hops(self, rows: int) -> int:
        """How many ranks to the left hold keys within the window."""
        return min(EACH - 1, -(-self.window // rows))

    def step(self, rows: int) -> None:
        keys = torch.rand(WIDTH)
        for _ in range(self.hops(rows)):
            room = torch.empty(WIDTH)
            works = dist.batch_isend_irecv([
                dist.P2POp(dist.isend, keys, self.right),
                dist.P2POp(dist.irecv, room, self.left),
            ])  # fmt: skip
            for work in works:
                work.wait()
            keys = room
        dist.all_reduce(torch.rand(1), group=self.group)


class Index:
    """A file of entries of one rank, which its tools change as well, under a lock."""

    def __init__(self, place: pathlib.Path) -> None:
        self.place, self.entries = place, 0
        place.touch()

    def compact(self) -> None:
        with self.place.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.truncate(0)
        self.entries = 0

    def append(self, lines: list[str], most: int) -> None:
        with self.place.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            for line in lines:
                if self.entries >= most:
                    self.compact()
                file.write(line)
                file.flush()
                self.entries += 1


def retrieve(rank: int, step: int, index: Index, group: dist.ProcessGroup) -> None:
    lines = [f"{rank} {step} {k}\n" for k in range(2)]
    index.append(lines, most=13 if faulty and rank == 7 else 100)
    scores = [torch.empty(2) for _ in range(EACH)]
    dist.all_gather(scores, torch.rand(2), group=group)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1, 2, 3]), dist.new_group([4, 5, 6, 7])]
    group = groups[rank // EACH]
    ring = Ring(rank, group, window=24)
    index = Index(pathlib.Path(f"index-{rank}"))
    for step in range(STEPS):
        if rank < EACH:
            long = faulty and (rank, step) == (0, 5)  # its part of the text is longer
            ring.step(rows=12 if long else 8)
        else:
            retrieve(rank, step, index, group)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
