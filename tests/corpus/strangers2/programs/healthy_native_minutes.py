"""One rank packs its shard in a single native call that lasts for minutes."""

import hashlib
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(8):
        if rank == 2 and step == 3:
            rounds = 400_000_000 if faulty else 200_000
            hashlib.pbkdf2_hmac("sha256", b"shard", b"salt", rounds)
        dist.all_reduce(torch.randn(32))
        dist.all_reduce(torch.randn(8))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
