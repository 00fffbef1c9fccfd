"""Evaluation by a judge that takes so many tokens a second: a bucket of tokens is filled."""

import sys
import threading
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ROUNDS, PROMPTS, RATE, ROOM = 8, 3, 4000, 1200


class Bucket:
    """Tokens flow in at a rate; who needs more than there are waits for them."""

    def __init__(self, rate: int, room: int) -> None:
        self.rate, self.room = rate, room
        self.tokens = room
        self.changed = threading.Condition()
        threading.Thread(target=self._fill, name="bucket", daemon=True).start()

    def _fill(self) -> None:
        while True:
            time.sleep(0.05)
            with self.changed:
                before = self.tokens
                self.tokens = min(self.room, self.tokens + self.rate // 20)
                if self.tokens > before:
                    self.changed.notify_all()

    def take(self, count: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.tokens >= count)
            self.tokens -= count


class Judge:
    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket

    def score(self, answer: list[int]) -> float:
        self.bucket.take(len(answer) + 64)
        return (sum(answer) % 17) / 17


def answers(rank: int, number: int) -> list[list[int]]:
    lengths = [90 + 40 * ((rank + number + prompt) % 4) for prompt in range(PROMPTS)]
    if faulty and (rank, number) == (0, 5):
        lengths[1] = 1180  # an answer that goes round in circles
    return [list(range(length)) for length in lengths]


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    judge = Judge(Bucket(RATE, ROOM))
    for number in range(ROUNDS):
        scores = [judge.score(answer) for answer in answers(rank, number)]
        mine = torch.tensor([sum(scores), float(len(scores))])
        everyone = [torch.empty(2) for _ in range(world)]
        dist.all_gather(everyone, mine)
        weights = torch.randn(12)
        dist.broadcast(weights, src=number % world)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
