"""A JAX program, one process for each rank, for benchmarks/gpu/any_program.py.

At step 7, rank 2 leaves out a psum, or sums half of the elements.
"""

from __future__ import annotations

import os
import sys

STEPS, STEP_OF_MISTAKE, RANK_OF_MISTAKE = 12, 7, 2


def main() -> None:
    """Run the program; the arguments are the coordinator's address and the mistake."""
    address, mistake = sys.argv[1:3]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    import jax
    import jax.numpy as jnp

    jax.distributed.initialize(address, world, rank, local_device_ids=[0])
    everywhere = jax.pmap(lambda value: jax.lax.psum(value, "ranks"), axis_name="ranks")
    gathered = jax.pmap(lambda value: jax.lax.all_gather(value, "ranks"), axis_name="ranks")
    # Compiled before the mistake, so that it is one of communication alone.
    full, half = jnp.ones((1, 1024)), jnp.ones((1, 512))
    last = [everywhere(full), gathered(full), everywhere(half)]
    for step in range(STEPS):
        wrong = rank == RANK_OF_MISTAKE and step == STEP_OF_MISTAKE
        if not (wrong and mistake == "left_out"):
            last = [everywhere(half if wrong and mistake == "changed" else full)]
        last.append(gathered(full))
    jax.block_until_ready(last)
    jax.distributed.shutdown()
    print("done", flush=True)


if __name__ == "__main__":
    main()
