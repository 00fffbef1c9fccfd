"""Two pipelines of two stages with unequal numbers of microbatches meet once a step."""

import subprocess
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = 1.0 if faulty else 0.01
STEPS, WIDTH = 8, 16
PIPES = ((0, 2), (3, 1))
MICROBATCHES = ((2, 5), (3, 1), (1, 6), (4, 4), (2, 7), (5, 1), (1, 3), (6, 2))
KERNEL = "import sys, time; time.sleep(float(sys.argv[1]))"


class Pipe:
    """Its first stage sends all microbatches ahead, its second one answers them in turn."""

    def __init__(self, rank: int) -> None:
        self.number = next(at for at, pipe in enumerate(PIPES) if rank in pipe)
        self.first, self.last = PIPES[self.number]
        self.rank = rank
        self.layer = torch.nn.Linear(WIDTH, WIDTH)

    def compile(self) -> None:
        """Compile a kernel for a new shape, in a child."""
        subprocess.run([sys.executable, "-S", "-c", KERNEL, str(15 * SECONDS)], check=True)

    def forward(self, count: int) -> None:
        sent = [dist.isend(torch.rand(WIDTH), dst=self.last, tag=at) for at in range(count)]
        for at in range(count):
            dist.recv(torch.empty(WIDTH), src=self.last, tag=100 + at)
        for work in sent:
            work.wait()

    def answer(self, step: int, count: int) -> None:
        for at in range(count):
            inputs = torch.empty(WIDTH)
            dist.recv(inputs, src=self.first, tag=at)
            if at == count // 2 and self.number == step % 2:
                self.compile()
            dist.send(self.layer(inputs).detach(), dst=self.first, tag=100 + at)

    def step(self, step: int) -> None:
        count = MICROBATCHES[step][self.number]
        if self.rank == self.first:
            self.forward(count)
        else:
            self.answer(step, count)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pipe = Pipe(rank)
    weights = torch.zeros(WIDTH)
    for step in range(STEPS):
        pipe.step(step)
        dist.all_reduce(weights)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
