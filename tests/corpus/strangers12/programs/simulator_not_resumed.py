"""Actors, a replay thread, two learners and an evaluator, which waits for files of weights."""

import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
VERSIONS, WIDTH = 12, 8
LEARNER, REPLAY, SIMULATING, ACTOR, EVALUATOR = range(5)
SIMULATOR = "import sys\nfor line in sys.stdin: print(len(line), flush=True)"


class Simulator:
    """A child that is stopped between episodes, for it polls its devices."""

    def __init__(self) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-S", "-c", SIMULATOR],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def episode(self, version: int) -> str:
        resumed = not (faulty and version == 8)  # the same scene as before: nothing to set up
        if resumed:
            os.kill(self.child.pid, signal.SIGCONT)
        self.child.stdin.write(f"play {version}\n")
        self.child.stdin.flush()
        length = self.child.stdout.readline()
        os.kill(self.child.pid, signal.SIGSTOP)
        return length.strip()


class Replay:
    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.episodes = group, queue.Queue(2)
        threading.Thread(target=self.run, name="replay", daemon=True).start()

    def run(self) -> None:
        for _ in range(VERSIONS):
            episode = torch.zeros(WIDTH)
            dist.recv(episode, src=ACTOR, group=self.group)
            self.episodes.put(episode)


def weights_of(version: int) -> pathlib.Path:
    return pathlib.Path(f"weights-{version}.pt")


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    learners, replays = dist.new_group([LEARNER, REPLAY]), dist.new_group([REPLAY, ACTOR])
    store = dist.PrefixStore("scenes", dist.distributed_c10d._get_default_store())
    replay = Replay(replays) if rank == REPLAY else None
    simulator = Simulator() if rank == SIMULATING else None
    for version in range(VERSIONS):
        if rank in (LEARNER, REPLAY):
            gradient = replay.episodes.get() if replay is not None else torch.zeros(WIDTH)
            dist.all_reduce(gradient, group=learners)
            if rank == LEARNER:
                torch.save(gradient, weights_of(version).with_suffix(".part"))
                weights_of(version).with_suffix(".part").rename(weights_of(version))
        elif simulator is not None:
            store.set(f"scene/{version}", simulator.episode(version))
        elif rank == ACTOR:
            length = float(store.get(f"scene/{version}"))
            dist.send(torch.full((WIDTH,), length), dst=REPLAY, group=replays)
        else:
            while not weights_of(version).exists():
                time.sleep(0.2)
            torch.load(weights_of(version)).norm()
    if simulator is not None:
        os.kill(simulator.child.pid, signal.SIGKILL)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
