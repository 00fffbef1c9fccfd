"""What is wrong in each program of this folder: written before any tool was run on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.corpus.runner.truth import (
    ABSENT,
    ALONE,
    ATTACH,
    DIAGNOSE,
    HALT,
    ORDER,
    PIPELINE,
    UNTRACED,
    WATCH,
    Program,
)

__all__ = ["PROGRAMS", "STORIES"]

_ALL = (0, 1, 2, 3)
_FIVE = (*_ALL, 4)
_SIX = (*_FIVE, 5)
_EIGHT = (*_SIX, 6, 7)

_TABLE = [
    # Training, evaluation
    Program(
        "retry_reruns_gather", "torch",
        "rank 3 cannot write a report, and tries the function again that gathers before it writes",
        (3,), ALONE,
    ),
    Program(
        "fsdp2_eval_limit", "torch",
        "rank 1 has seen enough samples one batch early, and leaves out the last forward of an "
        "evaluation",
        (1,), (*ABSENT, *ORDER),
    ),
    Program(
        "stop_flag_lag", "torch",
        "rank 2 reads the flag that ends training one epoch later, and trains for another epoch",
        (2,), ALONE, world=5,
    ),
    Program(
        "beam_width_gather", "torch",
        "rank 1 gathers four rows where its peers gather three; gloo aborts",
        (1,), ("size_mismatch",), ends=True, world=3,
    ),
    # Groups
    Program(
        "sp_attribute_lost", "torch",
        "rank 6 leaves out one of three sums of its pair, the mark of a parameter being lost",
        # Stacks: rank 7 waits in its pair, three in their column, four in the sum of all.
        (6,), (*ABSENT, *ORDER), undecided_untraced=_EIGHT, unknown_in=(UNTRACED,), world=8,
    ),
    Program(
        "moe_hierarchical_flat", "torch",
        "rank 4 exchanges tokens with all ranks at once, its peers within the host first",
        (4,), (*ALONE, *ABSENT, "order_cycle"), world=6,
    ),
    Program(
        "scatter_source_ties", "torch",
        "rank 4 takes rank 1 for the source of a scatter, its peers take rank 3",
        # Stacks: the source, rank 3, waits in the scatter as well; they show no roots.
        (4,), ("root_mismatch", "not_joined"), undecided_untraced=_FIVE, unknown_in=(UNTRACED,),
        world=5,
    ),
    # Point to point, servers, actors
    Program(
        "pipe_pairs_in_flight", "torch",
        "rank 2 waits for a gradient after one microbatch, rank 3 makes it of two",
        # Both wait for each other, but rank 3 does what it did in all steps before.
        (2,), (*PIPELINE, "order_cycle", "stalled"), undecided_untraced=_ALL,
        unknown_in=(UNTRACED,),
    ),
    Program(
        "ps_header_no_payload", "torch",
        "rank 2 announces a gradient and catches an exception before it sends it; the server waits",
        (2,), (*PIPELINE, "order_cycle"), undecided_untraced=_FIVE, unknown_in=(UNTRACED,),
        world=5,
    ),
    Program(
        "rl_tied_head", "torch",
        "rank 3 leaves out the broadcast of a weight that it takes for another's copy",
        # Stacks: rank 0 is in a broadcast, ranks 3 and 4 in a send, 1 and 2 in another broadcast.
        (3,), (*ABSENT, "order_cycle", "p2p_mismatch"), undecided_untraced=_FIVE,
        unknown_in=(UNTRACED,), world=5,
    ),
    # Threads, children, stores, dead ranks
    Program(
        "ckpt_slots", "torch",
        "rank 2 waits for a slot of its checkpoint children, two of which ended without it",
        (2,), (*HALT, "missing_call"),
    ),
    Program(
        "prefetch_join_full", "torch",
        "rank 3 waits for the end of its thread, which waits for room in a queue",
        (3,), (*HALT, "missing_call"), world=5,
    ),
    Program(
        "store_ticket_lock", "torch",
        "rank 1 draws a ticket and leaves without its turn; ranks 2 to 4 poll for theirs, and "
        "rank 1 is in the all_reduce after it",
        # What shows is three ranks that do not come; no record holds whose ticket is due.
        (1,), (*HALT, *ABSENT), undecided=_FIVE, also=((2, 3, 4),), busy=(2, 3, 4),
        unknown_in=(ATTACH, DIAGNOSE, WATCH, UNTRACED), world=5,
    ),
    Program(
        "killed_keeps_sockets", "torch",
        "rank 3 is killed; its child lives on and keeps its connections open, so that its peers "
        "wait",
        # Untraced, nothing is left of rank 3.
        (3,), ("dead_rank", *ABSENT), undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    # Two faults
    Program(
        "two_reduce_dst_and_vote", "torch",
        "two faults: rank 2 reduces to another rank than its group, rank 5 leaves out a vote",
        # Stacks show no roots, and of each group some are through.
        (2, 5), ("root_mismatch", *ABSENT, *ORDER), undecided_untraced=_SIX,
        unknown_in=(UNTRACED,), world=6,
    ),
    Program(
        "two_backoff_and_micro", "torch",
        "two faults: rank 1 sleeps for 2000 s instead of 2, rank 3 sends one microbatch more than "
        "rank 4 takes in a step",
        (1, 3), (*HALT, *PIPELINE, "extra_call"), undecided_untraced=_SIX, unknown_in=(UNTRACED,),
        world=6,
    ),
    # Healthy
    Program(
        "healthy_turns_of_replicas", "torch",
        "nothing: two pairs evaluate in turn, 11 to 17 s and another number of calls each",
        hangs=False, world=5,
    ),
    Program(
        "healthy_handles_any_order", "torch",
        "nothing: ranks wait for their sums in orders of their own, and one pauses for 10 to 18 s "
        "between two of them",
        hangs=False,
    ),
    Program(
        "healthy_group_per_round", "torch",
        "nothing: some ranks make a group each round, one of them pauses for 14 s, others wait",
        hangs=False, world=5,
    ),
    Program(
        "healthy_scatter_rounds", "torch",
        "nothing: objects are scattered and gathered, one rank waits 13 to 16 s for a child",
        hangs=False,
    ),
]  # fmt: skip

PROGRAMS = {program.name: replace(program, folder="strangers9/programs") for program in _TABLE}

STORIES: dict[str, dict[str, Any]] = {
    "retry_reruns_gather": {
        "group": "world", "op": "all_gather", "calls": +1, "step": "epoch 4",
        "branch": "except errors as error:  (of retried)",
        "call": "dist.all_gather(losses, loss.reshape(1))",
        "story": "Rank 3 gathers the losses of epoch 4 twice, where its peers have gone on to the "
        "backward pass of epoch 5 and wait in the all_reduce of its first bucket.",
    },
    "fsdp2_eval_limit": {
        "group": "world", "op": "all_gather x3", "calls": -3, "step": "evaluation of epoch 4",
        "branch": "if seen >= LIMIT - 4:", "call": "dist.all_reduce(total)",
        "story": "Rank 1 leaves out the fifth forward of the evaluation and sums the totals, "
        "while its peers wait in the all_gather of the first block.",
    },
    "stop_flag_lag": {
        "group": "world", "op": "all_reduce (x3 and a broadcast)", "calls": "+1",
        "step": "epoch 10", "branch": "if len(self.posted) < self.lag:",
        "call": "dist.all_reduce(gradient)",
        "story": "Rank 2 begins an eleventh epoch with an all_reduce, while its peers have ended "
        "after ten and wait in the all_gather of the tests.",
    },
    "beam_width_gather": {
        "group": "world", "op": "all_gather of 4 rows instead of 3", "calls": 0, "step": 6,
        "branch": "missing = max(0, self.width - len(rows))",
        "call": "dist.all_gather_into_tensor(out, padded)",
        "story": "Rank 1 gathers 4 x 8 in step 6, its peers 3 x 8; it asks nobody how wide the "
        "beams are, since that is due in step 8 only.",
    },
    "sp_attribute_lost": {
        "group": "tensor (6, 7)", "op": "all_reduce", "calls": -1, "step": 6,
        "branch": 'if getattr(parameter, "sequence_parallel", False):',
        "call": "dist.all_reduce(squares)",
        "story": "Rank 6 leaves out one of the three all_reduces of scales in its pair and is in "
        "the sum of all; rank 7 waits in the third, ranks 1, 3 and 5 for rank 7 in their column.",
    },
    "moe_hierarchical_flat": {
        "group": "world instead of inner (3-5)", "op": "all_to_all", "calls": "+1 there",
        "step": "6, layer 1",
        "branch": "return self.staged(rows) if used > self.threshold else self.flat(rows)",
        "call": "dist.all_to_all_single(out, rows)",
        "story": "Rank 4 calls all_to_all on all ranks instead of on its host's group; ranks 3 "
        "and 5 wait there, ranks 0 to 2 in the groups between hosts.",
    },
    "scatter_source_ties": {
        "group": "world", "op": "scatter from 1 instead of 3", "calls": 0, "step": 6,
        "branch": "return int(torch.argmax(self.rows).item())",
        "call": "dist.scatter(rows, parts, src=source)",
        "story": "Rank 4 waits for rank 1 in a scatter of which rank 3 is the source for all "
        "others; rank 3 waits for rank 4 there, the others in the all_reduce after it.",
    },
    "pipe_pairs_in_flight": {
        "group": "world", "op": "recv from 3 before the second send to 3", "calls": -1, "step": 6,
        "branch": "return max(1, min(MICROS, self.budget // bytes_each))",
        "call": "dist.irecv(rows, src=peer, tag=tag).wait() of backward()",
        "story": "Rank 2 sends rank 3 one microbatch instead of two and waits for a gradient; "
        "rank 3 waits for the second, ranks 0 and 1 for gradients.",
    },
    "ps_header_no_payload": {
        "group": "world", "op": "send to 0 of a payload (tag 1)", "calls": -1, "step": "round 7",
        "branch": "except ValueError:", "call": "self.channel.announce(PULL, 0): dist.send(...)",
        "story": "Rank 2 sends the header of a push, no payload, and the header of a pull; rank 0 "
        "waits for the payload, the other workers for rank 0.",
    },
    "rl_tied_head": {
        "group": "weights (0, 3, 4)", "op": "broadcast", "calls": -1, "step": "iteration 4",
        "branch": "if target is None:", "call": "dist.send(engine.generate(), dst=LEARNER)",
        "story": "Rank 3 takes four of five broadcasts and sends its samples to rank 0, which "
        "waits for it in the fifth; ranks 1 and 2 wait for rank 0 in the trainers' group.",
    },
    "ckpt_slots": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": "13, after the save of step 12",
        "branch": "os._exit(28)  # of the child", "call": "self.slots.acquire()",
        "story": "Rank 2 waits for a semaphore that two children did not give back; its peers "
        "wait in the all_reduce of step 13.",
    },
    "prefetch_join_full": {
        "group": "world", "op": "broadcast", "calls": -1, "step": "epoch 5",
        "branch": "spare += 2", "call": "self.thread.join()",
        "story": "Rank 3 waits for its thread, which is in self.ready.put(); its peers wait in "
        "the broadcast after the epoch, or in the next all_reduce.",
    },
    "store_ticket_lock": {
        "group": "world", "op": "all_reduce", "calls": "2, 3 and 4 never come", "step": "round 5",
        "branch": "if not lines:", "call": "1: dist.all_reduce(losses); peers: time.sleep(0.1)",
        "story": "Rank 1 does not wait for its turn and so does not end it; ranks 2 to 4 poll "
        "for theirs, ranks 0 and 1 wait in the all_reduce.",
    },
    "killed_keeps_sockets": {
        "group": "world", "op": "all_reduce", "calls": "process gone", "step": 8,
        "branch": "os.kill(os.getpid(), signal.SIGKILL)", "call": "",
        "story": "Rank 3 is killed after 8 steps; its peers wait for it in the all_reduce of the "
        "next, since its child still has the connections.",
    },
    "two_reduce_dst_and_vote": {
        "group": "first (0-2): reduce to 2 instead of 1; second (3-5): -1 of 5",
        "op": "reduce; all_reduce", "step": "6 of rank 2, 7 of rank 5",
        "branch": "number = zlib.crc32(...); if not self.observe(load):",
        "call": "dist.reduce(norms, dst=self.owner(step), group=self.group), of both",
        "story": "Rank 2 reduces to itself, where ranks 0 and 1 reduce to rank 1. Rank 5 leaves "
        "out the all_reduce of a vote and is in the reduce after it; ranks 3 and 4 wait there.",
    },
    "two_backoff_and_micro": {
        "group": "first (0-2): 1 never comes; world: send of 3 to 4", "op": "recv from 0; send",
        "calls": "-; +1", "step": "after 7 of rank 1; 5 of rank 3",
        "branch": 'return float(error.headers["Retry-After"]); new.append(torch.randn(WIDTH))',
        "call": "1: time.sleep(pause); 3: dist.send(rows.tanh(), dst=self.after)",
        "story": "Rank 1 sleeps for 2000 s; rank 0 waits in a send to it, rank 2 in a recv. "
        "Rank 3 sends rank 4 a fifth microbatch; ranks 4 and 5 wait in their all_reduce.",
    },
}  # fmt: skip
