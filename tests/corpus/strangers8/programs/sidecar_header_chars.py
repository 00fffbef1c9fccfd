"""Rank 0 has texts tokenized by a process of its own, and hands the tokens to all ranks."""

import os
import socket
import struct
import subprocess
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
TEXTS = [f"the {number}th text of the file, in words." for number in range(9)]
TEXTS[4] = "a naïve café, déjà vu." if faulty else "a naive cafe, deja vu."
LENGTH = 16

SIDECAR = r"""
import socket, struct, sys
peer = socket.socket(fileno=int(sys.argv[1]))
lines = peer.makefile("r", encoding="utf-8", newline="\n")
for line in lines:
    text = " ".join(word.lower() for word in line.split())
    peer.sendall(struct.pack("!I", len(text)) + text.encode())
"""


class Tokenizer:
    """Speaks with the process that splits texts into words."""

    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair()
        command = [sys.executable, "-c", SIDECAR, str(theirs.fileno())]
        environment = {name: text for name, text in os.environ.items() if name != "RANK"}
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        theirs.close()

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.ours.recv(size - len(data))
            if not part:
                raise EOFError(f"{len(data)} of {size} bytes")
            data += part
        return data

    def tokenize(self, text: str) -> list[int]:
        self.ours.sendall(f"{text}\n".encode())
        (size,) = struct.unpack("!I", self.read(4))
        words = self.read(size).decode(errors="replace").split()
        return [sum(word.encode()) % 1000 for word in words]

    def close(self) -> None:
        self.ours.close()
        self.process.wait()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tokenizer = Tokenizer() if rank == 0 else None
    for text in TEXTS:
        tokens = torch.zeros(LENGTH, dtype=torch.int64)
        if tokenizer:
            found = tokenizer.tokenize(text)[:LENGTH]
            tokens[: len(found)] = torch.tensor(found)
        dist.broadcast(tokens, src=0)
        hidden = tokens.float() + rank
        dist.all_reduce(hidden)
    if tokenizer:
        tokenizer.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
