"""Each rank reads its samples from a child that decodes them, one request at a time."""

import json
import select
import subprocess
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, WIDTH = 14, 8

DECODER = """
import json, sys

LIMIT = 24  # numbers in a line

for line in sys.stdin:
    request = json.loads(line)
    numbers = [float(request["seed"] % 7)] * request["length"]
    parts = [numbers[at : at + LIMIT] for at in range(0, len(numbers), LIMIT)]
    lines = [
        json.dumps({"part": part, "more": index + 1 < len(parts)})
        for index, part in enumerate(parts)
    ]
    sys.stdout.write("\\n".join(lines) + "\\n")
    sys.stdout.flush()
"""


class Decoder:
    """A child with a pipe each way; its answer may come in several lines."""

    def __init__(self) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-c", DECODER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def request(self, seed: int, length: int) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps({"seed": seed, "length": length}).encode() + b"\n")
        self.child.stdin.flush()

    def line(self) -> bytes:
        """Return the next line, for which nothing else is kept waiting."""
        assert self.child.stdout is not None
        while True:
            ready, _, _ = select.select([self.child.stdout], [], [], 30)
            if ready:
                return self.child.stdout.readline()

    def sample(self, seed: int, length: int) -> list[float]:
        self.request(seed, length)
        numbers: list[float] = []
        more = True
        while more:
            answer = json.loads(self.line())
            numbers += answer["part"]
            more = answer["more"]
        return numbers

    def close(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait()


class Dataset:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.decoder = Decoder()

    def length(self, step: int) -> int:
        if faulty and self.rank == 1 and step == 9:
            return 40  # the one long recording
        return 10 + (step * 5 + self.rank) % 14

    def __getitem__(self, step: int) -> torch.Tensor:
        numbers = self.decoder.sample(step + self.rank, self.length(step))
        return torch.tensor(numbers)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dataset = Dataset(rank)
    weights = torch.zeros(WIDTH)
    for step in range(STEPS):
        sample = dataset[step]
        gradient = weights * 0.1 + sample.mean()
        dist.all_reduce(gradient)
        weights -= 0.01 * gradient
    dataset.decoder.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
