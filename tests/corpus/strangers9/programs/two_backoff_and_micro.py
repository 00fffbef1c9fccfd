"""Two pipelines of three stages; a stage asks a service for permission to log now and then."""

import http.server
import sys
import threading
import time
import urllib.error
import urllib.request

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, MICROS, WIDTH, DEPTH = 10, 4, 12, 3


class Service(http.server.BaseHTTPRequestHandler):
    """Turns each third request away for a moment."""

    asked = 0
    unit = ""

    def do_GET(self) -> None:
        cls = type(self)
        cls.asked += 1
        away = cls.asked % 3 == 0
        self.send_response(429 if away else 200)
        if away:
            # Newer services say how long in milliseconds
            self.send_header("Retry-After", "0.2" if cls.unit != "ms" else "2000")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Logger:
    def __init__(self) -> None:
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}/"

    def ask(self) -> float:
        """Return how long to wait before the next attempt; none if there is no need to."""
        try:
            with urllib.request.urlopen(self.address, timeout=30):
                return 0.0
        except urllib.error.HTTPError as error:
            return float(error.headers["Retry-After"])

    def log(self) -> None:
        while pause := self.ask():
            time.sleep(pause)


class Stage:
    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group = rank, group
        self.before = rank - 1 if rank % DEPTH else None
        self.after = rank + 1 if rank % DEPTH < DEPTH - 1 else None
        self.rest: list[torch.Tensor] = []

    def inputs(self, step: int) -> list[torch.Tensor]:
        """What the first stage feeds: rows of the last step that were too many, and new ones."""
        new = [torch.randn(WIDTH) for _ in range(MICROS)]
        if faulty and (self.rank, step) == (3, 5):
            new.append(torch.randn(WIDTH))  # a document that was split
        if faulty and self.rank == 3:
            return new  # takes all, as it always did when there were four
        rows = self.rest + new
        self.rest = rows[MICROS:]
        return rows[:MICROS]

    def run(self, step: int) -> None:
        if self.before is None:
            for rows in self.inputs(step):
                dist.send(rows.tanh(), dst=self.after)
        else:
            rows = torch.empty(WIDTH)
            for _ in range(MICROS):
                dist.recv(rows, src=self.before)
                if self.after is not None:
                    dist.send(rows.tanh(), dst=self.after)
        dist.all_reduce(torch.rand(1), group=self.group)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1, 2]), dist.new_group([3, 4, 5])]
    stage, logger = Stage(rank, groups[rank // DEPTH]), Logger()
    for step in range(STEPS):
        stage.run(step)
        if step % 2 == 1:
            if faulty and rank == 1 and step == 7:
                Service.unit = "ms"
            logger.log()
            logger.log()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
