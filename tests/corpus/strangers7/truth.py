"""What is wrong in each program of this folder: written before any tool was run on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.corpus.runner.truth import (
    ABSENT,
    ALONE,
    HALT,
    ORDER,
    UNTRACED,
    Program,
)

__all__ = ["PROGRAMS", "STORIES"]

_SIX = (0, 1, 2, 3, 4, 5)

_TABLE = [
    # Training, evaluation
    Program(
        "eval_through_wrapper", "torch",
        "rank 3 evaluates one epoch through its DDP wrapper, which broadcasts the buffers",
        (3,), (*ALONE, *ORDER), launch="torchrun",
    ),
    Program(
        "local_sgd_warmup", "torch",
        "rank 1 has a shorter warmup, and averages its weights two steps before its peers",
        (1,), (*ALONE, *ORDER),
    ),
    Program(
        "metric_empty_list", "torch",
        "rank 0 has no values of one state of a metric, and leaves out its two gathers",
        (0,), (*ABSENT, *ORDER), world=5,
    ),
    Program(
        "prune_local", "torch",
        "rank 0 gives up a trial on its own loss and is in the start of the next one",
        (0,), (*ABSENT, *ORDER, "extra_call"),
    ),
    Program(
        "hooks_twice_resume", "torch",
        "rank 1 has registered its hooks twice, and sums each gradient twice; that shows in the "
        "next call of another kind, all gradients being of one size",
        (1,), (*ALONE, *ORDER),
    ),
    # Checkpoints
    Program(
        "resume_corrupt_shard", "torch",
        "rank 3 cannot read its shard and tries an older checkpoint, with one barrier more",
        (3,), (*ALONE, *ORDER),
    ),
    Program(
        "checkpoint_rotation", "torch",
        "rank 4 finds an old checkpoint to delete that its peers do not have, with a gather each",
        (4,), (*ALONE, *ORDER), world=5,
    ),
    # Optimizers, wrong arguments, exceptions
    Program(
        "shampoo_cholesky", "torch",
        "rank 0 catches a failed factorisation, and leaves out the gather of its block",
        (0,), (*ABSENT, *ORDER), world=3,
    ),
    Program(
        "scatter_list_given", "torch",
        "rank 2 hands a list to scatter though it is not its source, and drops the batch for the "
        "ValueError",
        (2,), (*ABSENT, *ORDER),
    ),
    Program(
        "excepthook_waits", "torch",
        "rank 1 raises for an input that is not padded; its hook for exceptions waits for a "
        "collector",
        (1,), (*HALT, "missing_call"),
    ),
    Program(
        "bucket_cap_env", "torch",
        "rank 3 has smaller buckets, and so sums another number of gradients first; gloo aborts",
        (3,), (*ORDER, *ALONE), ends=True,
    ),
    # Groups of a mesh
    Program(
        "non_member_noop", "torch",
        "rank 4 passes a group that it is no member of from step 7 on: its calls do nothing",
        # Stacks: rank 3 and 5 wait in their group, four are in the sum of all.
        (4,), (*ABSENT, *ORDER), world=6,
    ),
    Program(
        "mesh_shape_env", "torch",
        "rank 4 makes a mesh of 3 x 2, its peers one of 2 x 3",
        (4,), ("init_stalled", "order_cycle", *ABSENT, *ORDER), undecided_untraced=_SIX,
        unknown_in=(UNTRACED,), world=6,
    ),
    Program(
        "cp_ignored_labels", "torch",
        "rank 5 has no labels in its part of a sequence, and leaves out the sum of their number",
        (5,), (*ABSENT, *ORDER), world=6,
    ),
    # Two faults
    Program(
        "two_tuner_and_cache", "torch",
        "two faults: rank 1 tunes one size more than its group, rank 3 takes a gathered table from "
        "its cache",
        (1, 3), (*ALONE, *ABSENT, *ORDER), undecided_untraced=_SIX, world=6,
    ),
    Program(
        "two_partial_and_frozen", "torch",
        "two faults: rank 2 takes a sharded weight for a partial sum, rank 5 leaves out the "
        "gradients of two layers",
        (2, 5), (*ORDER, *ABSENT, "extra_call"), undecided_untraced=_SIX, world=6,
    ),
    # Healthy
    Program(
        "healthy_shrinking_world", "torch",
        "nothing: ranks 4 and 3 leave in order, those left go on in smaller groups and take 12 to "
        "17 s for a stage",
        hangs=False, world=5,
    ),
    Program(
        "healthy_join_uneven", "torch",
        "nothing: uneven inputs under join(), the last rank has 9 slow batches more",
        hangs=False,
    ),
    Program(
        "healthy_trace_export", "torch",
        "nothing: rank 2 compresses its trace for 11 to 19 s now and then, its peers wait",
        hangs=False, world=3,
    ),
    Program(
        "healthy_two_meshes", "torch",
        "nothing: two halves train at unequal paces with unequal numbers of calls and meet at "
        "times",
        hangs=False, world=6,
    ),
]  # fmt: skip

PROGRAMS = {program.name: replace(program, folder="strangers7/programs") for program in _TABLE}

STORIES: dict[str, dict[str, Any]] = {
    "eval_through_wrapper": {
        "group": "world", "op": "broadcast of the buffers", "calls": +1, "step": "epoch 4",
        "branch": "network = self.model if self.averages is None else self.model.module",
        "call": "logits = network(self.rows)",
    },
    "local_sgd_warmup": {
        "group": "world", "op": "all_reduce of the weights", "calls": "+1 each", "step": 6,
        "branch": 'warmup = recipe["warmup"] - recipe["already_warm"]',
        "call": "averager.average_parameters(model.parameters())",
    },
    "metric_empty_list": {
        "group": "world", "op": "all_gather x2", "calls": -2, "step": "epoch 5, state boxes",
        "branch": "if not state.values:",
        "call": "dist.all_reduce(seen)",
    },
    "prune_local": {
        "group": "world", "op": "all_reduce", "calls": "the rest of a trial", "step": "trial 3, "
        "report 4", "branch": "if self.pruner.is_bad(trial, value):",
        "call": "dist.all_gather_object(digests, sorted(settings.items()))",
    },
    "hooks_twice_resume": {
        "group": "world", "op": "all_reduce", "calls": "+4", "step": "6, the first after a resume",
        "branch": "if not self.has_hooks:",
        "call": "loss.backward(), or dist.all_reduce(parameter.grad) of the hook",
    },
    "resume_corrupt_shard": {
        "group": "world", "op": "barrier", "calls": +1, "step": "the resume after step 8",
        "branch": "except (RuntimeError, EOFError, pickle.UnpicklingError):",
        "call": "dist.barrier() of resume()",
    },
    "checkpoint_rotation": {
        "group": "world", "op": "all_gather of an object (two all_gathers)", "calls": +2,
        "step": "the fourth checkpoint", "branch": "for old in found[: -self.keep]:",
        "call": "dist.all_gather_object(freed, self.delete(old))",
    },
    "shampoo_cholesky": {
        "group": "world", "op": "all_gather", "calls": -1, "step": 8,
        "branch": "except torch.linalg.LinAlgError:",
        "call": "dist.all_reduce(gradient)",
    },
    "scatter_list_given": {
        "group": "world", "op": "scatter, all_reduce", "calls": "-1 each", "step": "round 9",
        "branch": "except ValueError as error:",
        "call": "dist.broadcast(length, src=0)",
    },
    "excepthook_waits": {
        "group": "world", "op": "reduce_scatter", "calls": -1, "step": 7,
        "branch": "if flat.numel() % self.world and self.pads:",
        "call": "answer = connection.recv(16)",
    },
    "bucket_cap_env": {
        "group": "world", "op": "all_reduce of a bucket", "calls": "other sizes", "step": 0,
        "branch": 'bucket_cap_mb=float(os.environ["TRAIN_BUCKET_MB"])', "call": "loss.backward()",
    },
    "non_member_noop": {
        "group": "row (3-5)", "op": "all_reduce, all_gather", "calls": -2, "step": 7,
        "branch": "return self.groups[self.rank // self.size]",
        "call": "dist.all_reduce(norm)",
    },
    "mesh_shape_env": {
        "group": "rows, columns of the mesh", "op": "new_group", "calls": 0, "step": "phase 1",
        "branch": "replicas = world // shards", "call": "init_device_mesh(",
    },
    "cp_ignored_labels": {
        "group": "context (3-5)", "op": "all_reduce", "calls": -1, "step": 9,
        "branch": "if not kept.any():",
        "call": "dist.all_gather(norms, torch.rand(1), group=self.context)",
    },
    "two_tuner_and_cache": {
        "group": "replica (0-2): +1 of 1; replica (3-5): -1 of 3", "op": "all_reduce; all_gather",
        "step": "6 of rank 1, 8 of rank 3",
        "branch": "for size in self.candidates(step):; if key in self.tables:",
        "call": "1: dist.all_reduce(seconds, op=dist.ReduceOp.MAX, group=self.group); "
        "3: dist.all_reduce(rows, group=self.group)",
    },
    "two_partial_and_frozen": {
        "group": "tensor (0-2): another call of 2; tensor (3-5): -2 of 5",
        "op": "all_reduce instead of all_gather; all_reduce", "step": "7 of rank 2, 5 of rank 5",
        "branch": "placement = self.placements[name]; if layer < self.frozen:",
        "call": "2: weight.redistribute(placements=[Replicate()]); "
        "5: dist.all_gather(norms, torch.rand(1), group=self.group)",
    },
}  # fmt: skip
