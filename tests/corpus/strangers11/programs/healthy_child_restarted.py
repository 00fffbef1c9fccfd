"""Each rank has a simulator in a child process, which ends at times and is started again."""

import subprocess
import sys
from typing import IO

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SCALE = 1.0 if faulty else 0.01
STEPS, WIDTH = 16, 6
CODE = """
import sys, time
time.sleep(float(sys.argv[1]))
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "crash":
        sys.exit(3)
    print(float(line) + 1, flush=True)
"""


class Simulator:
    """The child, and what it takes to have it again."""

    def __init__(self, load: float) -> None:
        self.process: subprocess.Popen[str]
        self.starts = 0
        self.start(load)

    def pipes(self) -> tuple[IO[str], IO[str]]:
        assert self.process.stdin
        assert self.process.stdout
        return self.process.stdin, self.process.stdout

    def start(self, load: float) -> None:
        command = [sys.executable, "-c", CODE, str(load)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pipes()[1].readline()
        self.starts += 1

    def ask(self, text: str) -> str:
        to, since = self.pipes()
        to.write(f"{text}\n")
        to.flush()
        return since.readline()

    def step(self, value: float, *, crash: bool, load: float) -> float:
        if crash:
            self.ask("crash")
        answer = "" if crash else self.ask(str(value))
        if not answer:  # its output has ended, and the child
            self.process.wait()
            self.start(load)
            answer = self.ask(str(value))
        return float(answer)

    def close(self) -> None:
        self.pipes()[0].close()
        self.process.wait()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    simulator = Simulator(load=SCALE * rank)
    state = torch.zeros(WIDTH)
    for step in range(STEPS):
        crash = step % 4 == 2 and (step // 4 + 1) % world == rank
        load = SCALE * (9 + step // 4 % 3 * 2)
        state[0] = simulator.step(float(state[0]), crash=crash, load=load)
        dist.all_reduce(state, op=dist.ReduceOp.MAX)
        dist.all_gather([torch.empty(1) for _ in range(world)], state[:1].clone())
    simulator.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
