"""Rank 0 passes control messages of a client on to the workers; the client may be silent."""

import json
import multiprocessing
import multiprocessing.connection
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
PAUSE = 180.0 if faulty else 2.0


def client(connection: multiprocessing.connection.Connection) -> None:
    """A user with some requests, a pause, and some more."""
    for number in range(6):
        connection.send_bytes(json.dumps({"kind": "run", "number": number}).encode())
        time.sleep(0.2)
    time.sleep(PAUSE)
    for kind in ("reset_prefix_cache", "run", "sleep", "wake_up", "run", "stop"):
        connection.send_bytes(json.dumps({"kind": kind}).encode())


class Worker:
    def handle(self, message: dict[str, object]) -> None:
        if message["kind"] == "run":
            for _ in range(4):
                dist.all_reduce(torch.randn(16))
        elif message["kind"] in ("sleep", "wake_up"):
            dist.barrier()


def main() -> None:
    dist.init_process_group("gloo")
    rank, worker, requests = dist.get_rank(), Worker(), None
    if rank == 0:
        requests, theirs = multiprocessing.Pipe()
        multiprocessing.get_context("spawn").Process(target=client, args=(theirs,)).start()
    while True:
        message = [None]
        if requests is not None:
            while not multiprocessing.connection.wait([requests], timeout=1.0):
                pass
            message = [json.loads(requests.recv_bytes())]
        dist.broadcast_object_list(message, src=0)
        if message[0]["kind"] == "stop":
            break
        worker.handle(message[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
