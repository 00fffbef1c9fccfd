"""Three tensor parallel pairs of two layers and a sum over all ranks."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def block(tp: dist.ProcessGroup, *, attention: bool, probe: bool) -> None:
    if attention:
        dist.all_reduce(torch.randn(16), group=tp)
    if probe:
        dist.all_reduce(torch.randn(16), group=tp)  # looks at the activations
    parts = [torch.empty(16) for _ in range(2)]
    dist.all_gather(parts, torch.randn(16), group=tp)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tp = [dist.new_group([base, base + 1]) for base in (0, 2, 4)][rank // 2]
    for step in range(10):
        for layer in range(3):
            here = faulty and step == 6 and layer == 1
            block(tp, attention=not (here and rank in (1, 4)), probe=here and rank == 2)
        dist.all_reduce(torch.randn(32))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
