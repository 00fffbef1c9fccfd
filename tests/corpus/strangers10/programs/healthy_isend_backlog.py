"""Rank 0 posts many sends ahead; its peers take them as they can, and end at unequal times."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = 1.0 if faulty else 0.02
WIDTH, ITEM, DONE = 64, 1, 2
LOADS = {1: (11, 4, 13), 2: (2, 2, 2, 2, 19, 2), 3: (16,), 4: (3, 14, 1, 1)}


class Feeder:
    """Hands all work out at once and then waits for it to be taken."""

    def __init__(self) -> None:
        self.works: list[tuple[dist.Work, torch.Tensor]] = []

    def post(self) -> None:
        for worker, loads in LOADS.items():
            for seconds in loads:
                item = torch.full((WIDTH,), float(seconds))
                self.works.append((dist.isend(item, dst=worker, tag=ITEM), item))

    def finish(self) -> list[float]:
        for work, _ in self.works:
            work.wait()
        results = []
        for worker in LOADS:
            result = torch.empty(1)
            dist.recv(result, src=worker, tag=DONE)
            results.append(result.item())
        return results


class Worker:
    def __init__(self, rank: int) -> None:
        self.loads = LOADS[rank]

    def handle(self, item: torch.Tensor) -> float:
        time.sleep(item[0].item() * SECONDS)  # a simulator of somebody else
        return item.sum().item()

    def run(self) -> None:
        total = 0.0
        for _ in self.loads:
            item = torch.empty(WIDTH)
            dist.recv(item, src=0, tag=ITEM)
            total += self.handle(item)
        dist.send(torch.tensor([total]), dst=0, tag=DONE)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        feeder = Feeder()
        feeder.post()
        results = feeder.finish()
        print(f"results: {results}", flush=True)
        time.sleep(8 * SECONDS)  # writes a report
    else:
        Worker(rank).run()
        if rank in (2, 3):
            time.sleep(2 * SECONDS)
            return  # nothing more to do for this one
    if rank == 0:
        dist.send(torch.tensor(results), dst=4)
    elif rank == 4:
        dist.recv(torch.empty(len(LOADS)), src=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
