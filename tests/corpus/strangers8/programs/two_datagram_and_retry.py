"""Two replicas of three: steps are tried until all members succeed, and counted by a daemon."""

import socket
import sys
import threading

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, LIMIT = 13, 120


class Daemon(threading.Thread):
    """Counts what it gets in datagrams and acknowledges them."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.counts: dict[bytes, int] = {}

    def run(self) -> None:
        while True:
            data, sender = self.socket.recvfrom(2048)
            if len(data) <= LIMIT:
                self.counts[data[:4]] = self.counts.get(data[:4], 0) + 1
                self.socket.sendto(b"ok", sender)


class Statistics:
    def __init__(self, daemon: Daemon) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(daemon.socket.getsockname())

    def report(self, text: str) -> None:
        self.socket.send(text.encode())
        self.socket.recv(16)


class Replica:
    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group = rank, group

    def attempt(self, step: int, number: int) -> bool:
        slow = (self.rank + 1) % 3 == 0 and step % 2 == 0  # succeeds at the second attempt only
        return number > 0 or not slow

    def step(self, step: int) -> int:
        number = 0
        alone = faulty and self.rank == 4 and step == 8  # after a reload of its settings
        while True:
            done = self.attempt(step, number)
            number += 1
            agreed = torch.tensor([float(done)])
            dist.all_reduce(agreed, op=dist.ReduceOp.MIN, group=self.group)
            if done if alone else agreed.item():
                break
        parts = [torch.empty(6) for _ in range(3)]
        dist.all_gather(parts, torch.randn(6), group=self.group)
        return number


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1, 2]), dist.new_group([3, 4, 5])]
    daemon = Daemon()
    daemon.start()
    statistics = Statistics(daemon)
    replica = Replica(rank, groups[rank // 3])
    for step in range(STEPS):
        attempts = replica.step(step)
        tags = [f"attempts={attempts}", f"rank={rank}"]
        if faulty and rank == 1 and step == 5:
            tags += [f"layer{layer}=finite" for layer in range(12)]
        statistics.report(",".join(tags))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
