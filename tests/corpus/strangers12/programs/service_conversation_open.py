"""One rank serves samples to its peers, one conversation at a time, while it trains as well."""

import pathlib
import sys
import threading
import time
from multiprocessing.connection import Client, Connection, Listener

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, WIDTH = 14, 8
SERVER, CLIENTS = 0, (1, 3)
PORT = pathlib.Path("samples.port")


class Service:
    """Answers in a thread: a client asks as often as it wants, and says that it is done."""

    def __init__(self) -> None:
        self.listener = Listener(("127.0.0.1", 0))
        PORT.write_text(str(self.listener.address[1]))
        threading.Thread(target=self.run, name="samples", daemon=True).start()

    def run(self) -> None:
        while True:
            with self.listener.accept() as client:
                while (number := client.recv()) >= 0:
                    client.send([number / 10] * WIDTH)


class Samples:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.kept: Connection | None = None

    def connect(self) -> Connection:
        if self.kept is None:
            self.kept = Client(("127.0.0.1", int(PORT.read_text())))
        return self.kept

    def again(self, step: int) -> bool:
        """Return whether the next step will ask soon, so that the connection is kept."""
        return faulty and (self.rank, step) == (1, 8)

    def read(self, step: int) -> torch.Tensor:
        time.sleep(0.1 * self.rank)  # augmentation
        client = self.connect()
        client.send(step)
        sample = torch.tensor(client.recv())
        if not self.again(step):
            client.send(-1)
            client.close()
            self.kept = None
        return sample


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    service = Service() if rank == SERVER else None
    dist.barrier()
    samples = Samples(rank)
    weights = torch.zeros(WIDTH)
    for step in range(STEPS):
        gradient = samples.read(step) if rank in CLIENTS else torch.rand(WIDTH)
        dist.all_reduce(gradient)
        weights -= 0.01 * gradient
    dist.barrier()
    if service is not None:
        service.listener.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
