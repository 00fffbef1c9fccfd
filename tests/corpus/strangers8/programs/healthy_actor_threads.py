"""A learner receives episodes in a thread for each actor, which take unequal times for them."""

import queue
import sys
import threading
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
LEARNER, LENGTH = 0, 18
UNIT = 1.0 if faulty else 0.01
EPISODES = {1: [3, 19, 5, 16, 4, 21, 7], 2: [17, 13, 20, 15], 3: [6, 4, 15, 18, 3, 5, 14, 8]}


class Learner:
    """Learns of three episodes at once, of whatever actors they come."""

    def __init__(self) -> None:
        self.episodes: queue.Queue[tuple[int, torch.Tensor]] = queue.Queue()
        self.threads = [
            threading.Thread(target=self.receive, args=(actor,), name=f"actor {actor}")
            for actor in EPISODES
        ]
        self.weights = torch.zeros(LENGTH)
        self.idle = 0

    def receive(self, actor: int) -> None:
        for _ in EPISODES[actor]:
            episode = torch.empty(LENGTH)
            dist.recv(episode, src=actor, tag=actor)
            self.episodes.put((actor, episode))

    def next(self) -> torch.Tensor:
        while True:
            try:
                return self.episodes.get(timeout=1.0)[1]
            except queue.Empty:
                self.idle += 1

    def run(self) -> None:
        for thread in self.threads:
            thread.start()
        left = sum(map(len, EPISODES.values()))
        while left:
            batch = [self.next() for _ in range(min(3, left))]
            left -= len(batch)
            self.weights += torch.stack(batch).mean(0)
        for thread in self.threads:
            thread.join()


class Actor:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def play(self, seconds: float) -> torch.Tensor:
        time.sleep(UNIT * seconds)  # the environment is another program
        return torch.randn(LENGTH)

    def run(self) -> None:
        for seconds in EPISODES[self.rank]:
            dist.send(self.play(seconds), dst=LEARNER, tag=self.rank)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    worker = Learner() if rank == LEARNER else Actor(rank)
    worker.run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
