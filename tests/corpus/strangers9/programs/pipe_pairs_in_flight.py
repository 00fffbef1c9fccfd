"""A pipeline whose last stage compares microbatches in pairs, with isend and irecv."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, MICROS, WIDTH = 8, 6, 18
FORWARD, BACKWARD = 1, 2


class Links:
    """What a stage has posted to its neighbours and not waited for."""

    def __init__(self, rank: int, world: int) -> None:
        self.before = rank - 1 if rank else None
        self.after = rank + 1 if rank + 1 < world else None
        self.sent: list[tuple[dist.Work, torch.Tensor]] = []

    def put(self, rows: torch.Tensor, peer: int, tag: int) -> None:
        self.sent.append((dist.isend(rows, dst=peer, tag=tag), rows))

    def take(self, peer: int, tag: int) -> torch.Tensor:
        rows = torch.empty(WIDTH)
        dist.irecv(rows, src=peer, tag=tag).wait()
        return rows

    def flush(self) -> None:
        for work, _ in self.sent:
            work.wait()
        self.sent.clear()


class Stage:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.links = rank, Links(rank, world)
        self.budget = 4096  # bytes of activations that may be in flight

    def depth(self, bytes_each: int) -> int:
        return max(1, min(MICROS, self.budget // bytes_each))

    def forward(self) -> None:
        before, after = self.links.before, self.links.after
        rows = torch.randn(WIDTH) if before is None else self.links.take(before, FORWARD)
        if after is not None:
            self.links.put(rows.tanh(), after, FORWARD)

    def backward(self) -> None:
        before, after = self.links.before, self.links.after
        gradient = torch.randn(WIDTH) if after is None else self.links.take(after, BACKWARD)
        if before is not None:
            self.links.put(gradient * 0.5, before, BACKWARD)

    def run(self, bytes_each: int) -> None:
        depth = self.depth(bytes_each) if self.links.after is not None else 2
        depth -= depth % 2 if depth > 1 else 0
        begun = ended = 0
        while ended < MICROS:
            while begun < MICROS and begun - ended < depth:
                self.forward()
                begun += 1
            for _ in range(min(depth, begun - ended)):
                self.backward()
                ended += 1
        self.links.flush()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    stage = Stage(rank, world)
    for step in range(STEPS):
        length = 1024 if step % 3 else 2048
        if faulty and (rank, step) == (2, 6):
            length += 1024  # padded to the next multiple on this stage
        stage.run(bytes_each=length)
        dist.all_reduce(torch.rand(1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
