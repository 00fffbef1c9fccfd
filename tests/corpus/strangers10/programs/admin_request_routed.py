"""Three replicas of two tensor parallel ranks; requests are routed, commands go to all replicas."""

import sys
import zlib
from dataclasses import dataclass

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, REPLICAS, WIDTH = 12, 3, 10


@dataclass(frozen=True)
class Message:
    kind: str
    step: int
    session: str = ""


class Router:
    """Each replica reads the same log and takes what is meant for it."""

    def __init__(self, replica: int, log: list[Message]) -> None:
        self.replica, self.log = replica, log

    def mine(self, message: Message) -> bool:
        if message.session:
            return zlib.crc32(message.session.encode()) % REPLICAS == self.replica
        return True

    def messages(self, step: int) -> list[Message]:
        return [message for message in self.log if message.step == step and self.mine(message)]


class Replica:
    def __init__(self, pair: dist.ProcessGroup) -> None:
        self.pair = pair
        self.cache: dict[str, torch.Tensor] = {}

    def generate(self, message: Message) -> None:
        hidden = torch.rand(WIDTH)
        for _ in range(2):
            dist.all_reduce(hidden, group=self.pair)
            hidden = hidden.tanh()
        self.cache[message.session] = hidden

    def flush(self) -> None:
        """Forget everything, at one point in time in all replicas."""
        dist.barrier()
        self.cache.clear()

    def handle(self, message: Message) -> None:
        if message.kind == "flush":
            self.flush()
        else:
            self.generate(message)


def log_of_requests() -> list[Message]:
    log = [Message("generate", step, f"user-{step * 7 + k}") for step in range(STEPS)
           for k in range(5)]  # fmt: skip
    log.append(Message("flush", 4))
    # A newer client puts the name of its session into each message
    log.append(Message("flush", 8, session="console-0" if faulty else ""))
    return log


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = [dist.new_group([2 * k, 2 * k + 1]) for k in range(REPLICAS)]
    router = Router(rank // 2, log_of_requests())
    replica = Replica(pairs[rank // 2])
    for step in range(STEPS):
        for message in router.messages(step):
            replica.handle(message)
        load = torch.tensor([float(len(replica.cache))])
        dist.all_reduce(load, op=dist.ReduceOp.MAX)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
