"""A planner splits the requests of each step in a pool; a router waits for the plan's key."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, WIDTH = 14, 16
PLANNER, ROUTER = 1, 3


class Planner:
    """Plans in a pool of one thread, since the tokenizer is not safe for more."""

    def __init__(self, store: dist.Store) -> None:
        self.store, self.pool = store, ThreadPoolExecutor(1, "planner")

    def count(self, requests: list[str]) -> list[int]:
        return [len(request.split()) for request in requests]

    def plan(self, step: int, requests: list[str]) -> None:
        if len(requests) > 8:  # is counted in two halves
            halves = [requests[:8], requests[8:]]
            parts = [self.pool.submit(self.count, half) for half in halves]
            counts = [each for part in parts for each in part.result()]
        else:
            counts = self.count(requests)
        self.store.set(f"plan/{step}", json.dumps(counts))

    def run(self, step: int) -> None:
        number = 12 if faulty and step == 9 else 4 + step % 4
        requests = [" ".join(["word"] * (1 + each)) for each in range(number)]
        self.pool.submit(self.plan, step, requests).result()


class Router:
    def __init__(self, store: dist.Store) -> None:
        self.store, self.tokens = store, 0

    def run(self, step: int) -> None:
        self.tokens += sum(json.loads(self.store.get(f"plan/{step}")))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = dist.PrefixStore("plans", dist.distributed_c10d._get_default_store())
    part = {PLANNER: Planner, ROUTER: Router}.get(rank)
    role = part(store) if part is not None else None
    for step in range(STEPS):
        if role is not None:
            role.run(step)
        dist.barrier()
        logits = torch.rand(WIDTH)
        dist.all_reduce(logits)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
