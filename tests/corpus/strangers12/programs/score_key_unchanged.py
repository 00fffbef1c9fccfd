"""Two evaluators score each version; a scheduler reads the score before the trainers go on."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
VERSIONS, WIDTH = 14, 16
SCHEDULER, SCORER, WRITER = 2, 3, 4


class Evaluators:
    """The scorer computes, the writer keeps the history and publishes it in the store."""

    def __init__(self, rank: int, store: dist.Store) -> None:
        self.rank, self.store = rank, store
        self.group = dist.new_group([SCORER, WRITER])
        self.last = torch.zeros(1)

    def score(self, version: int) -> torch.Tensor:
        same = faulty and version == 9  # the learning rate was zero
        return self.last.clone() if same else torch.tensor([1.0 / (1 + version)])

    def run(self, version: int) -> None:
        if self.rank == SCORER:
            score = self.score(version)
            if torch.equal(score, self.last):
                return
            self.last = score
            dist.broadcast(score, src=SCORER, group=self.group)
        else:
            score = torch.zeros(1)
            dist.broadcast(score, src=SCORER, group=self.group)
            self.store.set(f"score/{version}", str(float(score)))


class Scheduler:
    def __init__(self, store: dist.Store) -> None:
        self.store, self.best, self.rate = store, float("inf"), 0.1

    def update(self, version: int) -> None:
        score = float(self.store.get(f"score/{version}"))
        if score >= self.best:
            self.rate /= 2
        self.best = min(score, self.best)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = dist.PrefixStore("scores", dist.distributed_c10d._get_default_store())
    trainers = dist.new_group([0, 1, SCHEDULER])
    evaluators = Evaluators(rank, store)
    scheduler = Scheduler(store)
    torch.manual_seed(rank)
    for version in range(VERSIONS):
        if rank <= SCHEDULER:
            gradient = torch.randn(WIDTH)
            dist.all_reduce(gradient, group=trainers)
        else:
            evaluators.run(version)
        if rank == SCHEDULER:
            scheduler.update(version)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
