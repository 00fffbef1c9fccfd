"""A JAX program with all GPUs in one process: ``ncclscope run -- python jax_one_process.py``.

XLA sums with kernels of its own where GPUs reach each other's memory, and gathers through NCCL. The
process then holds a rank of the communicator for each GPU.
"""

from __future__ import annotations

STEPS = 10


def main() -> None:
    """Sum and gather on all GPUs, and print how many there are and what came out."""
    import jax
    import jax.numpy as jnp

    count = jax.local_device_count()
    everywhere = jax.pmap(lambda value: jax.lax.psum(value, "ranks"), axis_name="ranks")
    gathered = jax.pmap(lambda value: jax.lax.all_gather(value, "ranks"), axis_name="ranks")
    values = jnp.ones((count, 1024))
    for _ in range(STEPS):
        total, copies = everywhere(values), gathered(values)
    jax.block_until_ready((total, copies))
    print(f"{count} GPUs, sum {float(total[0, 0])}, gathered {copies.shape}", flush=True)


if __name__ == "__main__":
    main()
