"""What each kind of verdict means, what causes it, and what to look at next."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of finding.

    Attributes:
        meaning: What one rank did, or what happened.
        causes: Usual causes.
        look_at: Where the reason is found.
    """

    meaning: str
    causes: str
    look_at: str


def _differs(what: str, causes: str) -> Kind:
    return Kind(
        f"One rank posted a call with {what} than its peers, under the same sequence number.",
        causes,
        "verdict.odd and verdict.peers are the two calls; site in each is the line that posted.",
    )


_BRANCH = "a condition on data of this rank alone, such as a loss, a length or an exception"

KINDS = {
    "op_mismatch": _differs("another operation", _BRANCH),
    "size_mismatch": _differs("another size", "an uneven batch, a wrong shard, another model"),
    "dtype_mismatch": _differs("another element type", "mixed precision set on some ranks only"),
    "redop_mismatch": _differs("another reduction", "options that differ between ranks"),
    "root_mismatch": _differs("another root", "a rank of the group used as a global rank"),
    "split_mismatch": _differs(
        "numbers of rows that do not match its peers'", "sizes that were not exchanged before"
    ),
    "capture_mismatch": Kind(
        "One rank posted a call while it captured a CUDA graph, and its peers posted it eagerly.",
        "a batch size that is captured on some ranks only",
        "verdict.odd.site, and the sizes for which each rank has captured graphs",
    ),
    "missing_call": Kind(
        "One rank left out a call that its peers posted, and went on.",
        f"{_BRANCH}; no_sync or an evaluation on one rank",
        "the site of the peers' call, and the condition around it in the code of the rank",
    ),
    "extra_call": Kind(
        "One rank posted a call that its peers did not, and went on.",
        f"{_BRANCH}; logging or a checkpoint on one rank that uses a collective",
        "verdict.odd.site: the line of the additional call",
    ),
    "comm_swap": Kind(
        "One rank posted calls on another communicator: fewer here, and as many more there.",
        "a dispatcher or a group chosen from data of this rank alone",
        "verdict.comm and verdict.evidence, and where the code chooses between communicators",
    ),
    "order_cycle": Kind(
        "Ranks entered two communicators in opposite orders, and each waits in another's call.",
        "two code paths, threads or streams that post on both communicators",
        "verdict.evidence: who waits for whom, with each rank's call",
    ),
    "not_joined": Kind(
        "One rank never came to a call in which its peers wait, and is elsewhere.",
        "it computes, loads, compiles, waits for work, or raised an exception",
        "the stacks of attach; the rank's last call; its activities",
    ),
    "late": Kind(
        "A rank is at work while its peers wait for it: it may still come, or never.",
        "work on one rank alone, such as data, a checkpoint or a compilation; an endless loop",
        "the stacks of attach, twice: a rank in an endless loop comes back to the same lines",
    ),
    "not_scheduled": Kind(
        "Requests wait in an engine, and its scheduler has admitted none since: no rank diverged.",
        "no free KV block, a grammar that never gets ready, a request larger than the cache",
        "verdict.evidence: what the scheduler counts",
    ),
    "rpc_stalled": Kind(
        "An engine waits for an answer that a worker does not give, or a server for its engine.",
        "a lock or a file on one worker, a lost answer, a process stopped by a signal",
        "the line at which the worker is, and verdict.evidence: how far each worker has come",
    ),
    "dead_rank": Kind(
        "A rank ended, or left no record, and its peers wait for it.",
        "a kill for memory, an error of the GPU, a crash",
        "the kernel's log, the job's log at that time, the exit status",
    ),
    "stalled": Kind(
        "All ranks are in the same call, and it does not complete: no rank diverged.",
        "the network, a GPU or NCCL itself; a call that other work on the GPU holds up",
        "NCCL's RAS, errors of the network and the GPUs; attach --native",
    ),
    "p2p_mismatch": Kind(
        "A send does not fit what its receiver expects, or nobody receives it.",
        "a pipeline schedule or microbatch count that differs between stages",
        "verdict.odd and verdict.peers: the two ends",
    ),
    "group_order": Kind(
        "One rank reordered the calls of one NCCL group. Nothing hangs yet.",
        "iteration over a set or over a dictionary filled in another order",
        "verdict.odd.site: the loop that posts the group",
    ),
    "init_stalled": Kind(
        "A rank has not come to init_process_group, to the creation of a communicator, or has not "
        "set a key of a store, and its peers wait there.",
        "a process that never started, a wrong address, work before the rendezvous on one rank",
        "verdict.awaited: the key; the stack of the rank that has not come",
    ),
    "transfer_stalled": Kind(
        "A request waits for KV blocks or tokens that another process does not send.",
        "a prefill engine that ended or stopped, a wrong address, blocks that expired",
        "verdict.transfer: the request, both engines, since when, the deadline",
    ),
}
"""By the name in ``verdict.kind``."""
