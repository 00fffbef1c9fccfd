"""Speculative decoding: ranks 0 and 1 run the draft model, four ranks verify its tokens."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Draft:
    """The small model, tensor parallel over two ranks."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def propose(self, count: int) -> torch.Tensor:
        tokens = torch.zeros(5, dtype=torch.int64)
        for number in range(count):
            hidden = torch.randn(16)
            dist.all_reduce(hidden, group=self.group)
            dist.all_reduce(hidden, group=self.group)
            tokens[number] = int(hidden.argmax())
        return tokens


class Target:
    def verify(self, tokens: torch.Tensor) -> None:
        dist.broadcast(tokens, src=0)
        for _ in range(3):
            dist.all_reduce(torch.randn(len(tokens), 8))


def drafts(step: int) -> int:
    return 1 if step < 6 else 4  # few as long as the acceptance is not known


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    group = dist.new_group([0, 1])
    draft = Draft(group) if rank < 2 else None
    target = Target()
    for step in range(40):
        count = drafts(step)
        if faulty and rank == 0 and step == 27:
            count += 1  # the bonus token of the step before
        tokens = torch.zeros(5, dtype=torch.int64)
        if draft is not None:
            tokens = draft.propose(count)
        target.verify(tokens)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
