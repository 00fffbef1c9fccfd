"""Serve with three engines of two tensor parallel ranks; an idle engine runs a dummy batch."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def execute_model(tp: dist.ProcessGroup, dp: dist.ProcessGroup) -> None:
    dist.all_reduce(torch.randn(16), group=tp)
    dist.all_reduce(torch.ones(3), group=dp)  # tokens of each engine
    dist.all_reduce(torch.randn(16), group=tp)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tps = [dist.new_group([base, base + 1]) for base in (0, 2, 4)]
    dps = [dist.new_group([base, base + 2, base + 4]) for base in (0, 1)]
    tp, dp = tps[rank // 2], dps[rank % 2]
    engine = rank // 2
    for step in range(24):
        has_requests = (step + engine) % 3 != 0
        if has_requests:
            execute_model(tp, dp)
        elif faulty and engine == 2 and step == 13:
            pass  # paused: no dummy batch
        else:
            execute_model(tp, dp)  # the dummy batch
        if step % 4 == 3:
            unfinished = [torch.empty(1) for _ in range(3)]
            dist.all_gather(unfinished, torch.ones(1), group=dp)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
