"""Documents are scattered, sorted by one child a rank, and gathered; some take their time."""

import subprocess
import sys

import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
ROUNDS = 9
SECONDS = 1.0 if faulty else 0.01


class Tasks:
    def __init__(self, world: int) -> None:
        self.world = world

    def deal(self, number: int) -> list[dict[str, float]]:
        """One task a rank; a long one now and then, and another rank's each time."""
        tasks = [{"seconds": 0.6 + 0.3 * rank} for rank in range(self.world)]
        tasks[(number * 2 + 1) % self.world]["seconds"] = 13.0 + number % 4
        return tasks


def sort(task: dict[str, float]) -> int:
    child = subprocess.run(
        ["sleep", str(SECONDS * task["seconds"])], check=False, stdin=subprocess.DEVNULL
    )
    return child.returncode


def round_of(rank: int, world: int, number: int) -> None:
    tasks = Tasks(world).deal(number) if rank == number % world else None
    mine: list[dict[str, float] | None] = [None]
    dist.scatter_object_list(mine, tasks, src=number % world)
    assert mine[0] is not None
    result = sort(mine[0])
    results = [None] * world if rank == number % world else None
    dist.gather_object(result, results, dst=number % world)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    for number in range(ROUNDS):
        round_of(rank, world, number)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
