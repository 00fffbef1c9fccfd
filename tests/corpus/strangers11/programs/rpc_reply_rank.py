"""A driver calls methods of its workers by broadcast; their answers come over sockets."""

import json
import socket
import sys
from typing import Any

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, ROWS, WIDTH = 12, 4, 6
STOP = "stop"


class Replies:
    """The driver's end: one connection of each worker."""

    def __init__(self, workers: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = [server.getsockname()[1]]
            dist.broadcast_object_list(port, src=0)
            self.lines = {}
            for _ in range(workers):
                lines = server.accept()[0].makefile("r")
                self.lines[int(lines.readline())] = lines

    def of(self, rank: int) -> Any:
        return json.loads(self.lines[rank].readline())


class Executor:
    def __init__(self, world: int) -> None:
        self.world = world
        self.replies = Replies(world - 1)

    def call(self, method: str, *arguments: Any, reply: int | None = None) -> list[Any]:
        dist.broadcast_object_list([method, arguments, reply], src=0)
        ranks = range(1, self.world) if reply is None else [reply]
        return [self.replies.of(rank) for rank in ranks]


class Model:
    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group = rank, group

    def load(self) -> int:
        return self.rank

    def finished(self, step: int) -> bool:
        """Whether each row has come to its end."""
        return faulty and (self.rank, step) == (3, 7)

    def execute(self, step: int) -> list[int] | None:
        hidden = torch.rand(ROWS, WIDTH) + self.rank
        dist.all_reduce(hidden, group=self.group)
        if self.finished(step):
            return None
        return hidden.argmax(-1).tolist()


class Worker:
    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.model = rank, Model(rank, group)
        port: list[Any] = [None]
        dist.broadcast_object_list(port, src=0)
        self.connection = socket.create_connection(("127.0.0.1", port[0]))
        self.connection.sendall(f"{rank}\n".encode())

    def answer(self, result: Any) -> None:
        if result is not None:
            self.connection.sendall(json.dumps(result).encode() + b"\n")

    def run(self) -> None:
        while True:
            call: list[Any] = [None, None, None]
            dist.broadcast_object_list(call, src=0)
            method, arguments, reply = call
            if method == STOP:
                return
            result = getattr(self.model, method)(*arguments)
            if reply in (None, self.rank):
                self.answer(result)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    workers = dist.new_group(range(1, world))
    if rank == 0:
        executor = Executor(world)
        executor.call("load")
        for step in range(STEPS):
            executor.call("execute", step, reply=world - 1)
        dist.broadcast_object_list([STOP, (), None], src=0)
    else:
        Worker(rank, workers).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
