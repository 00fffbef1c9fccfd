"""Between batches rank 0 sends control messages, and gathers an acknowledgement of each."""

import sys
from typing import Any

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Client:
    """Handles control messages on one rank."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.cache: dict[int, float] = {}
        self.asleep = False

    def acknowledge(self, text: str) -> list[Any]:
        answers: list[Any] = [None] * self.world
        dist.gather_object(text, answers if self.rank == 0 else None, dst=0)
        return answers

    def reset_cache(self) -> str:
        if faulty and self.rank == 1 and 9 in self.cache:
            self.cache.clear()
            self.acknowledge("busy")  # a block is still in use here, so say so first
        self.cache.clear()
        return "reset"

    def handle(self, message: str) -> None:
        if message == "reset":
            answer = self.reset_cache()
        else:
            self.asleep = message == "sleep"
            answer = message
        self.acknowledge(answer)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    client = Client(rank, world)
    script = ["run"] * 4 + ["sleep", "wake"] + ["run", "run", "reset"] * 4 + ["stop"]
    for number, text in enumerate(script):
        message = [text if rank == 0 else None]
        dist.broadcast_object_list(message, src=0)
        if message[0] == "stop":
            break
        if message[0] == "run":
            client.cache[number % 15] = 1.0
            dist.all_reduce(torch.randn(3, 8))
        else:
            client.handle(message[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
