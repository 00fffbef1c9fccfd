"""A chain of stages prepares samples: each hands a list of records on to the next one."""

import sys
from typing import Any

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ROUNDS = 10

Record = dict[str, Any]


class Link:
    """To the stage before and to the one after."""

    def __init__(self, rank: int, world: int) -> None:
        self.before = rank - 1 if rank > 0 else None
        self.after = rank + 1 if rank + 1 < world else None

    def take(self, number: int) -> list[Record]:
        if self.before is None:
            return [{"id": f"{number}-{index}", "length": 10 + index} for index in range(4)]
        holder: list[Any] = [None]
        dist.recv_object_list(holder, src=self.before)
        records: list[Record] = holder[0]
        return records

    def give(self, records: list[Record], number: int) -> None:
        if self.after is None:
            return
        if not records and faulty:
            self.keep_alive(number)
            return
        dist.send_object_list([records], dst=self.after)

    def keep_alive(self, number: int) -> None:
        """Show the next stage that this one lives, though it has nothing for it."""
        assert self.after is not None
        dist.send(torch.tensor([number]), dst=self.after)


class Stage:
    def __init__(self, rank: int, link: Link) -> None:
        self.rank, self.link = rank, link
        self.done = 0

    def work(self, record: Record, number: int) -> Record | None:
        if self.rank == 1 and number == 6:
            return None  # its filter lets nothing through in this round
        return {**record, f"stage{self.rank}": True}

    def run(self, number: int) -> None:
        worked = [self.work(record, number) for record in self.link.take(number)]
        records = [record for record in worked if record is not None]
        self.done += len(records)
        self.link.give(records, number)


def total(count: int) -> int:
    counted = torch.tensor([count])
    dist.all_reduce(counted)
    return int(counted)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = Stage(rank, Link(rank, world))
    for number in range(1, ROUNDS + 1):
        stage.run(number)
        records = total(stage.done)
        if rank == 0:
            print(f"round {number}: {records} records", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
