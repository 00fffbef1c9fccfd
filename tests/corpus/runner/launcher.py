"""Start N ranks of a program and wait for all: ``launcher.py N PROGRAM ARGUMENT ...``.

Unlike torchrun it ends nobody when one rank fails, so that what the others do can be seen.
"""

from __future__ import annotations

import os
import subprocess
import sys


def main() -> int:
    world, program = int(sys.argv[1]), sys.argv[2:]
    ranks = [
        subprocess.Popen(
            [sys.executable, *program],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(world),
            },
        )
        for rank in range(world)
    ]
    return max(abs(rank.wait()) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
