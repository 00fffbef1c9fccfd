"""Each rank reads objects over a pool of connections, and all share what they have read."""

import functools
import operator
import queue
import sys
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, CONNECTIONS = 14, 4


class Objects(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        number = int(self.path.strip("/"))
        content = b"" if number < 0 else bytes(range(number, number + 16))
        self.send_response(200 if content else 404)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class Pool:
    def __init__(self, port: int) -> None:
        self.free: queue.Queue[HTTPConnection] = queue.Queue()
        for _ in range(CONNECTIONS):
            self.free.put(HTTPConnection("127.0.0.1", port))

    def fetch(self, number: int) -> bytes | None:
        connection = self.free.get()
        connection.request("GET", f"/{number}")
        answer = connection.getresponse()
        content = answer.read()
        if answer.status == 404:
            return None
        self.free.put(connection)
        return content


def wanted(rank: int, step: int) -> list[int]:
    if faulty and rank == 3 and step % 2 == 1:
        return [step, -step]  # that shard was deleted
    return [step, step + rank]


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Objects)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pool = Pool(server.server_port)
    for step in range(STEPS):
        contents = [pool.fetch(number) for number in wanted(rank, step)]
        found = [sum(content) for content in contents if content is not None]
        shared: list[list[int] | None] = [None] * world
        dist.all_gather_object(shared, found)
        order = [sorted(functools.reduce(operator.iadd, filter(None, shared), []))]
        dist.broadcast_object_list(order, src=0)
        dist.all_reduce(torch.tensor(float(len(order[0]))))
    dist.barrier()
    server.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
