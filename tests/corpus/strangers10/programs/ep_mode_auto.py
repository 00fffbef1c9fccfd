"""Two expert groups of three; tokens are dispatched in a mode for prompts or one for decoding."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, WIDTH, EACH, CAPACITY = 10, 4, 3, 8


class Requests:
    """How many rows of prompts and of decoding a rank has in a step."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.paused: set[int] = set()

    def rows(self, step: int) -> tuple[int, int]:
        if step in self.paused:
            return 0, 0
        prompt = 9 + self.rank if step % 4 == 3 and self.rank % EACH != 0 else 0
        return prompt, 2 + (self.rank + step) % 3


class Dispatcher:
    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def resolve(self, prompt: int, decoding: int) -> str:
        """Choose the mode: that for prompts if a member of the group has any."""
        flag = torch.tensor([prompt > 0], dtype=torch.int32)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self.group)
        if prompt + decoding == 0:
            return "low latency"  # an idle batch, padded to one row
        return "normal" if flag.item() else "low latency"

    def normal(self, rows: torch.Tensor) -> torch.Tensor:
        sizes = [len(part) for part in rows.tensor_split(EACH)]
        counts = [torch.zeros(EACH, dtype=torch.int64) for _ in range(EACH)]
        dist.all_gather(counts, torch.tensor(sizes), group=self.group)
        me = dist.get_rank(self.group)
        expected = [int(count[me]) for count in counts]
        out = torch.empty(sum(expected), WIDTH)
        dist.all_to_all_single(out, rows, expected, sizes, group=self.group)
        return out

    def low_latency(self, rows: torch.Tensor) -> torch.Tensor:
        padded = torch.zeros(EACH * CAPACITY, WIDTH)
        padded[: len(rows)] = rows
        out = torch.empty_like(padded)
        dist.all_to_all_single(out, padded, group=self.group)
        return out

    def dispatch(self, prompt: int, decoding: int) -> torch.Tensor:
        rows = torch.rand(max(1, prompt + decoding), WIDTH)
        if self.resolve(prompt, decoding) == "normal":
            return self.normal(rows)
        return self.low_latency(rows)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1, 2]), dist.new_group([3, 4, 5])]
    requests, dispatcher = Requests(rank), Dispatcher(groups[rank // EACH])
    if faulty and rank == 5:
        requests.paused.add(7)  # its client has gone away
    for step in range(STEPS):
        rows = dispatcher.dispatch(*requests.rows(step))
        done = torch.tensor([float(len(rows))])
        dist.all_reduce(done)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
