"""Clients ask a server at their own pace, some often and some seldom, until they have enough."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
PACE = 3.0 if faulty else 0.05
QUESTIONS = 40 if faulty else 6
ASK, LEAVE = 1.0, 0.0


def serve(clients: int) -> int:
    """Answer whoever asks; return the number of answers."""
    answers = 0
    while clients:
        question = torch.empty(2)
        sender = dist.recv(question)  # from anyone
        if question[0].item() == LEAVE:
            clients -= 1
            continue
        dist.send(question * 2, dst=sender)
        answers += 1
    return answers


def ask(rank: int) -> None:
    for number in range(QUESTIONS // rank):
        time.sleep(PACE * rank * (1 + number % 2))  # thinks about the answer
        dist.send(torch.tensor([ASK, float(number)]), dst=0)
        answer = torch.empty(2)
        dist.recv(answer, src=0)
    dist.send(torch.tensor([LEAVE, 0.0]), dst=0)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        serve(world - 1)
    else:
        ask(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
