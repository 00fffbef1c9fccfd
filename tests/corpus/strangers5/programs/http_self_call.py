"""Each rank scores its texts by a small HTTP service of its own, which answers one at a time."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.request import urlopen

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Service(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.vocabulary: list[str] | None = ["a", "b", "c"]
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def ask(self, path: str) -> object:
        with urlopen(f"http://127.0.0.1:{self.server_port}{path}") as answer:
            return json.load(answer)


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_GET(self) -> None:
        if self.path == "/vocabulary":
            found: object = ["a", "b", "c"]
        else:
            if self.server.vocabulary is None:
                self.server.vocabulary = list(self.server.ask("/vocabulary"))
            found = len(self.server.vocabulary) / 3
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    service = Service()
    for iteration in range(10):
        if faulty and rank == 0 and iteration == 6:
            service.vocabulary = None  # it is out of date
        score = service.ask(f"/score/{iteration}")
        dist.all_reduce(torch.tensor([float(score)]))
        dist.broadcast(torch.randn(16), src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
