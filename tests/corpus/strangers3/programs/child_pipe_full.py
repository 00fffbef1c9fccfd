"""Each rank converts its shard with a tool of its own and takes the output from a pipe."""

import subprocess
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def convert(shard: str, size: int) -> bytes:
    """Return what the tool prints of a shard."""
    tool = subprocess.Popen(
        ["sh", "-c", f"echo {shard}; head -c {size} /dev/zero"],
        stdout=subprocess.PIPE,
    )
    status = tool.wait()
    if status != 0:
        raise RuntimeError(f"{shard}: status {status}")
    return tool.stdout.read()


class Loader:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __getitem__(self, step: int) -> torch.Tensor:
        size = 4096
        if faulty and self.rank == 3 and step == 8:
            size = 1 << 18  # a long document, more than a pipe holds
        output = convert(f"shard-{self.rank}-{step}", size)
        return torch.tensor([float(len(output))])


def main() -> None:
    dist.init_process_group("gloo")
    loader = Loader(dist.get_rank())
    weights = torch.zeros(16)
    for step in range(12):
        batch = loader[step]
        gradient = torch.full((16,), batch.item())
        dist.all_reduce(gradient)
        weights -= 1e-6 * gradient
        largest = batch.clone()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
