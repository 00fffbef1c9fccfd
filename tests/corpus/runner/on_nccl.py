"""Run a program of the corpus over NCCL, on the GPUs there are: ``on_nccl.py PROGRAM ARGUMENT``.

The programs are written for gloo and the CPU. Here their text is changed before it is compiled:
the backend, the device of a mesh, and the default device of tensors. In a pair rank 1 makes the
mistake that rank 2 makes among four. Lines keep their numbers.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

CHANGES = {'"gloo"': '"nccl"', '"cpu"': '"cuda"'}
IN_A_PAIR = {"rank == 2": "rank == 1", "rank == 3": "rank == 1"}


def main() -> None:
    program, *arguments = sys.argv[1:]
    device = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    torch.cuda.set_device(device)
    torch.set_default_device(torch.device("cuda", device))
    text = Path(program).read_text()
    changes = CHANGES | (IN_A_PAIR if os.environ["WORLD_SIZE"] == "2" else {})
    for what, other in changes.items():
        text = text.replace(what, other)
    sys.argv = [program, *arguments]
    names = {"__name__": "__main__", "__file__": program}
    exec(compile(text, program, "exec"), names)


if __name__ == "__main__":
    main()
