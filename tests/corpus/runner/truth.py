"""What is wrong in each program: written before any tool was run on it."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["ATTACH", "DIAGNOSE", "PROGRAMS", "UNTRACED", "WATCH", "Program"]

ATTACH, WATCH, DIAGNOSE, UNTRACED = "attach", "watch", "diagnose", "untraced"
ABSENT = ("not_joined", "missing_call")
"""A rank left calls out: it went on, or is elsewhere."""
ALONE = ("extra_call", "op_mismatch", "size_mismatch")
"""A rank made a call that its peers never make; theirs come later."""
ORDER = ("op_mismatch", "size_mismatch", "order_cycle")
PIPELINE = ("p2p_mismatch", "not_joined", "missing_call")
HALT = ("not_joined", "stalled")
"""A rank waits for something outside the job."""
LATE = ("late",)
"""A rank computes, and may still come."""


@dataclass(frozen=True)
class Program:
    """A program and its truth.

    Attributes:
        name: Its file, without ``.py``.
        framework: Whose program it is.
        mistake: What is wrong when it is faulty.
        ranks: The diverging ranks.
        kinds: The kinds of finding that describe the mistake.
        undecided: Where a verdict that names nobody is fair, the ranks among which it may place
            the mistake; all of `ranks` must be among its candidates. Empty: it has to name them.
        undecided_in: The ways of asking for which that holds; empty for all.
        undecided_untraced: The same for processes that are not traced, where it is a wider set:
            stacks show neither peers nor roots of a call, nor how many calls there were.
        involved: Where nobody is to be named, the ranks that have to be among the candidates;
            empty for all of `undecided`.
        unknown_in: The ways of asking in which the status ``unknown`` is fair.
        ok_in: The same for the status ``ok``.
        most: The highest confidence with which the ranks may be named.
        world: World size.
        busy: Ranks that compute or poll without end instead of waiting.
        ends: Whether the faulty job ends by itself, so that nothing can be asked while it hangs.
        hangs: False for a program that only looks like a hang: any alarm is wrong.
        launch: ``plain`` or ``torchrun``.
        needs: Modules that have to be importable.
        also: Other sets of ranks that are right as well.
        folder: Where it lies, below ``tests/corpus``.
        chooses_backend: Whether it uses NCCL by itself where there is a GPU.
    """

    name: str
    framework: str
    mistake: str
    ranks: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    undecided: tuple[int, ...] = ()
    undecided_in: tuple[str, ...] = ()
    undecided_untraced: tuple[int, ...] = ()
    involved: tuple[int, ...] = ()
    unknown_in: tuple[str, ...] = ()
    ok_in: tuple[str, ...] = ()
    most: str = "certain"
    world: int = 4
    busy: tuple[int, ...] = ()
    ends: bool = False
    hangs: bool = True
    launch: str = "plain"
    needs: tuple[str, ...] = ()
    also: tuple[tuple[int, ...], ...] = field(default=())
    folder: str = "programs"
    chooses_backend: bool = False

    def fair(self, way: str) -> frozenset[int]:
        """Return the ranks among which an undecided verdict may place the mistake."""
        if way == UNTRACED and self.undecided_untraced:
            return frozenset(self.undecided_untraced)
        return frozenset(
            self.undecided if not self.undecided_in or way in self.undecided_in else ()
        )


_ALL = (0, 1, 2, 3)
_SIX = (*_ALL, 4, 5)
_ANY_WAY = (ATTACH, WATCH, DIAGNOSE, UNTRACED)

_TABLE = [
    # DistributedDataParallel
    Program(
        "ddp_no_sync", "torch", "rank 2 runs one step under no_sync(), its peers do not",
        (2,), (*ABSENT, *ALONE),
    ),
    Program(
        "ddp_fewer_batches_all_reduce", "torch",
        "rank 3 has one batch fewer, leaves the loop and sums the losses with all_reduce; gloo "
        "aborts on the other size",
        (3,), (*ABSENT, *ALONE), ends=True,
    ),
    Program(
        "ddp_fewer_batches_barrier", "torch",
        "rank 3 has one batch fewer, leaves the loop and waits in the last barrier",
        (3,), (*ABSENT, *ALONE),
    ),
    Program(
        "ddp_fewer_batches_exit", "torch",
        "rank 3 has one batch fewer and ends; its peers get a closed connection",
        (3,), (*ABSENT, "dead_rank"), ends=True,
    ),
    Program(
        "ddp_unused_branch", "torch",
        "rank 1 leaves out a branch of the model, so that one gradient bucket is never ready",
        (1,), (*ABSENT, *ALONE),
    ),
    Program(
        "ddp_find_unused_differs", "torch",
        "rank 1 wraps the model with find_unused_parameters=True, its peers without: one more "
        "all_reduce in each step",
        # All wait in the same line of torch, for calls that the reducer posts in C++.
        (1,), ALONE, undecided=_ALL, undecided_in=(WATCH, DIAGNOSE),
    ),
    Program(
        "ddp_join", "torch",
        "uneven inputs: rank 1 enters no join() context, its peers do",
        (1,), (*ABSENT, *ALONE),
    ),
    Program(
        "ddp_metric_rank0", "torch",
        "rank 0 alone reduces the loss for its log line; gloo aborts on the other size",
        (0,), ALONE, ends=True,
    ),
    # Calls by hand
    Program(
        "early_stop_local", "torch",
        "rank 2 stops early on its own loss and waits in the broadcast of the best model",
        (2,), (*ABSENT, *ALONE),
    ),
    Program(
        "exception_caught", "torch",
        "rank 2 catches an exception of one step and leaves out the all_reduces of that step",
        (2,), ABSENT,
    ),
    Program(
        "opposite_order", "torch",
        "rank 2 posts all_gather and all_reduce in the opposite order",
        (2,), ("op_mismatch",),
    ),
    Program(
        "set_order", "torch",
        "rank 1 reduces the entries of a dict in another order than its peers; gloo aborts",
        (1,), ("size_mismatch", "op_mismatch"), ends=True,
    ),
    Program(
        "broadcast_root", "torch",
        "rank 2 broadcasts from its own rank, its peers from rank 0",
        # Of two ranks that are through, one has the right root; stacks show no roots.
        (2,), ("root_mismatch",), undecided=_ALL, undecided_in=(UNTRACED,),
    ),
    Program(
        "gather_object_rank0", "torch",
        "rank 0 alone calls all_gather_object for a report",
        (0,), ALONE,
    ),
    Program(
        "barrier_rank0_first", "torch",
        "rank 0 prepares data from a server that never answers; its peers wait in a barrier",
        (0,), HALT,
    ),
    Program(
        "pair_skips", "torch",
        "of two ranks, rank 1 leaves out one all_reduce and ends in a broadcast",
        (1,), (*ABSENT, *ALONE), undecided=(0, 1), world=2,
    ),
    Program(
        "uneven_all_to_all", "torch",
        "rank 2 sends rank 0 more rows than rank 0 expects",
        (2,), ("split_mismatch", "size_mismatch"), undecided=(0, 2), ends=True,
    ),
    # Groups of a mesh, of experts
    Program(
        "mesh_extra_batch", "torch",
        "rank 3 has one batch more than its peers, who wait in the last barrier",
        (3,), ALONE,
    ),
    Program(
        "mesh_extra_batch_first", "torch",
        "rank 0 of six has one batch more than its peers, who wait in the last barrier",
        (0,), ALONE, world=6,
    ),
    Program(
        "mesh_broadcast_instead", "torch",
        "ranks 1 and 3 broadcast a gradient that all others reduce with all_reduce",
        # Stacks show no group: three of six are elsewhere, and rank 5 is one of them.
        (1, 3), ("op_mismatch",), undecided_untraced=_SIX, world=6,
    ),
    Program(
        "mesh_two_skip", "torch",
        "rank 1 and rank 4, of different data parallel groups, leave out the all_reduce of a step",
        (1, 4), ABSENT, world=6,
    ),
    Program(
        "expert_backward_left_out", "torch",
        "rank 1 leaves out an all_to_all of its expert group, no token having reached it; rank 0 "
        "waits there, and alone is not in the all_reduce of all",
        (1,), ABSENT, undecided=(0, 1),
    ),
    Program(
        "expert_forward_left_out", "torch",
        "rank 4 leaves out an all_to_all of its expert group; rank 5 waits there, and alone is "
        "not in the all_reduce of all",
        (4,), ABSENT, undecided=(4, 5), world=6,
    ),
    # Groups
    Program(
        "group_left_out", "torch",
        "rank 3 does not take part in new_group(), because it is no member of the group; the "
        "next group has another name there",
        # All are at the same line then.
        (3,), (*ABSENT, *ORDER, "init_stalled"), undecided=_ALL, undecided_in=(UNTRACED,),
        unknown_in=(UNTRACED,),
    ),
    Program(
        "group_order", "torch",
        "rank 3 makes two groups in the opposite order",
        (3,), ("init_stalled", "order_cycle", *ABSENT, *ORDER), undecided=_ALL,
        undecided_in=(UNTRACED, ATTACH),
    ),
    Program(
        "nested_groups", "torch",
        "rank 1 calls the group of all before its pair, its peers their pair first",
        # Two of four are at the same line, and stacks do not show whose call it is.
        (1,), ("order_cycle", *ABSENT), undecided_untraced=_ALL,
    ),
    # Point to point
    Program(
        "recv_cycle", "torch",
        "each rank receives from its left before it sends to its right",
        (), ("p2p_mismatch", "stalled", "order_cycle"), undecided=_ALL,
    ),
    Program(
        "send_left_out", "torch",
        "rank 2 sends rank 3 nothing in one step",
        # Rank 3 may have asked once too often, though no other pair has.
        (2,), PIPELINE, undecided=(2, 3), undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "pipeline_by_hand", "torch",
        "stage 1 forwards one microbatch fewer",
        (1,), PIPELINE, undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "pipeline_microbatch", "torch",
        "stage 2 of a GPipe schedule is set up with one microbatch fewer",
        (2,), PIPELINE, undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "ring_odd_parity", "torch",
        "rank 2 sends rank 0 a block on one group, and rank 0 receives it on the other",
        # The schedule is wrong for each odd ring, and no rank departs from it.
        (), ("p2p_mismatch", "stalled", "order_cycle"), undecided=(0, 1, 2), involved=(0, 2),
        world=3,
    ),
    Program(
        "weight_sync_barrier_first", "torch",
        "rank 0 enters a barrier before it sends weights; rank 1 comes there after rank 2 has "
        "sent to it, which waits for the weights, as rank 3 does",
        (), ("p2p_mismatch", "stalled", "order_cycle", *ABSENT), undecided=(0, 1, 2),
        undecided_untraced=_ALL, involved=(0,), also=((0,),), most="likely",
    ),
    Program(
        "rollout_weights_first", "torch",
        "rank 2 receives weights from rank 0 before it sends rank 1 what that one needs to come "
        "to the barrier in which rank 0 waits",
        (2,), ("p2p_mismatch", "stalled", "order_cycle", *ABSENT), undecided=_ALL,
    ),
    Program(
        "rollout_last_reports_late", "torch",
        "rank 4 receives weights from rank 1 before it sends rank 2 what that one needs to come "
        "to the all_reduce in which ranks 0 and 1 wait",
        (4,), ("p2p_mismatch", "stalled", "order_cycle", *ABSENT), undecided=(*_ALL, 4), world=5,
    ),
    # A rank waits for something else
    Program(
        "build_lock_stale", "torch",
        "ranks 1, 2 and 3 poll for the lock of a build that was killed to go away, before a "
        "barrier in which rank 0 waits",
        (1, 2, 3), HALT, undecided=_ALL, unknown_in=_ANY_WAY, busy=(1, 2, 3),
    ),
    Program(
        "exit_thread", "torch",
        "rank 0 does not end: its interpreter waits for a thread that waits for a queue; its "
        "peers have ended",
        (0,), HALT, unknown_in=_ANY_WAY,
    ),
    Program(
        "slow_preparation", "torch",
        "nothing: rank 2 computes for minutes before it comes to the all_reduce of its peers",
        (2,), LATE, unknown_in=_ANY_WAY, ok_in=_ANY_WAY, most="likely", busy=(2,),
    ),
    Program(
        "loader_lock", "torch",
        "the data loader's worker of rank 1 waits for a lock that was held when it was forked",
        (1,), HALT,
    ),
    Program("fifo_open", "torch", "rank 1 opens a FIFO that nobody writes to", (1,), HALT),
    Program(
        # Without a record two samples do not show whether a rank works or never ends.
        "lock_file", "torch", "rank 3 polls for a lock file to go away", (3,), HALT,
        busy=(3,), unknown_in=(UNTRACED,),
    ),
    Program("stopped_rank", "torch", "rank 1 is stopped by SIGSTOP", (1,), HALT),
    Program(
        "endless_loop", "torch", "rank 2 never leaves a loop over its data", (2,), LATE,
        busy=(2,), unknown_in=(UNTRACED,),
    ),
    Program(
        "init_missing", "torch",
        "rank 3 waits for a lock before init_process_group",
        (3,), (*HALT, "init_stalled", "dead_rank"),
        undecided=_ALL, undecided_in=(DIAGNOSE, WATCH), unknown_in=(DIAGNOSE, WATCH),
    ),
    Program(
        "slow_rank", "torch", "nothing: rank 1 sleeps for 6 s in each step", hangs=False
    ),
    # FSDP2, ZeRO, DTensor, tensor parallel, checkpoints, compiled graphs
    Program(
        "fsdp_empty_batch", "torch", "rank 1 leaves out a step, its batch being empty",
        (1,), (*ABSENT, *ORDER),
    ),
    Program(
        "fsdp_eval_rank0", "torch", "rank 0 alone evaluates a sharded model", (0,), ALONE
    ),
    Program(
        "zero_step_left_out", "torch",
        "rank 2 leaves out a step of the ZeRO optimizer, its gradients being infinite",
        (2,), (*ABSENT, *ORDER),
    ),
    Program(
        "zero_consolidate_rank0", "torch",
        "rank 0 alone consolidates the ZeRO optimizer's state before it saves",
        (0,), ALONE,
    ),
    Program(
        "dtensor_print", "torch", "rank 0 alone prints full_tensor() of a DTensor", (0,), ALONE
    ),
    Program(
        "tensor_parallel_eos", "torch",
        "rank 3 ends a decoding loop one token early",
        (3,), (*ABSENT, *ORDER),
    ),
    Program(
        "checkpoint_save_rank0", "torch",
        "rank 0 alone saves a distributed checkpoint", (0,), ALONE,
    ),
    Program(
        "checkpoint_load_missing", "torch",
        "rank 3 does not see the checkpoint and loads nothing",
        (3,), (*ABSENT, *ORDER),
    ),
    Program(
        "compiled_left_out", "torch",
        "rank 2 leaves out one call of a compiled function that holds an all_reduce",
        (2,), ABSENT + ORDER,
    ),
    # Frameworks
    Program(
        "accelerate_gather_main", "accelerate",
        "the main process alone gathers the losses", (0,), ALONE, needs=("accelerate",),
    ),
    Program(
        "accelerate_save_state_main", "accelerate",
        "the main process alone waits for everyone before it saves", (0,), ALONE,
        needs=("accelerate",),
    ),
    Program(
        "lightning_log_rank_zero", "lightning",
        "rank 0 alone logs with sync_dist=True", (0,), ALONE, needs=("lightning",),
    ),
    Program(
        "lightning_uneven", "lightning",
        "rank 2 has one batch fewer and no distributed sampler; it ends first, its peers get a "
        "closed connection",
        (2,), (*ABSENT, *ALONE, "dead_rank"), ends=True, needs=("lightning",),
    ),
    Program(
        "trainer_evaluate_main", "transformers",
        "a callback evaluates with a gather on the main process alone", (0,), ALONE,
        needs=("transformers", "accelerate"),
    ),
    Program(
        "torchmetrics_rank0", "torchmetrics",
        "rank 0 alone computes a metric", (0,), ALONE, needs=("torchmetrics",),
    ),
    Program(
        "deepspeed_save_rank0", "deepspeed",
        "rank 0 alone saves a checkpoint", (0,), ALONE, needs=("deepspeed",),
    ),
    Program(
        "megatron_pipeline", "megatron-core",
        "stage 1 runs one microbatch fewer", (1,), PIPELINE, undecided_untraced=_ALL,
        unknown_in=(UNTRACED,), needs=("megatron.core",),
    ),
]  # fmt: skip

PROGRAMS = {program.name: program for program in _TABLE}
