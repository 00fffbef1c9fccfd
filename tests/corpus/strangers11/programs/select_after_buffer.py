"""Each rank has texts cut into tokens by a process of its own, asked over a socket."""

import multiprocessing
import select
import socket
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, WIDTH = 10, 8


def tokenize(connection: socket.socket) -> None:
    """Answer each message with a line for each of its texts."""
    while message := connection.recv(4096):
        lines = []
        for text in message.decode().strip().split("|"):
            lines.append(" ".join(str(len(word)) for word in text.split()))
        connection.sendall("".join(f"{line}\n" for line in lines).encode())


class Tokenizer:
    def __init__(self) -> None:
        self.connection, theirs = socket.socketpair()
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=self.child, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.lines = self.connection.makefile("r")

    def child(self, theirs: socket.socket) -> None:
        self.connection.close()
        tokenize(theirs)

    def ask(self, texts: list[str]) -> list[list[int]]:
        self.connection.sendall("|".join(texts).encode() + b"\n")
        found: list[list[int]] = []
        while len(found) < len(texts):
            select.select([self.lines], [], [])
            found.append([int(part) for part in self.lines.readline().split()])
        return found

    def close(self) -> None:
        self.lines.close()
        self.connection.close()
        self.process.join()


class Requests:
    """Texts of clients; most steps have one new text."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def of(self, step: int) -> list[str]:
        texts = [f"a text of step {step} for {self.rank}"]
        if faulty and (self.rank, step) == (0, 6):
            texts.append("one that came at the same time")
        return texts


def main() -> None:
    tokenizer = Tokenizer()
    dist.init_process_group("gloo")
    requests = Requests(dist.get_rank())
    for step in range(STEPS):
        tokens = tokenizer.ask(requests.of(step))
        count = torch.tensor([float(sum(map(len, tokens)))])
        dist.all_reduce(count)
        dist.all_reduce(torch.rand(WIDTH))
    tokenizer.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
