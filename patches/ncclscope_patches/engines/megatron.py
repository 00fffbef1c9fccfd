"""Label Megatron-core's process groups, and record the steps of its schedules."""

from __future__ import annotations

from typing import Any

from ncclscope.tracing import session
from ncclscope_patches.engines.steps import StepPatch
from ncclscope_patches.probes import process_groups
from ncclscope_patches.probes.probe import Note

_NAMES = {
    "CONTEXT_PARALLEL_GROUP": "cp",
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp_cp",
    "DATA_PARALLEL_GROUP_WITH_CP_AG": "dp_cp_ag",
    "EMBEDDING_GROUP": "embd",
    "EXPERT_DATA_PARALLEL_GROUP": "expt_dp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "tp_ep",
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": "tp_ep_pp",
    "EXPERT_TENSOR_PARALLEL_GROUP": "expt_tp",
    "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": "intra_dist_opt",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "intra_dp_cp",
    "MODEL_PARALLEL_GROUP": "mp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "POSITION_EMBEDDING_GROUP": "pos_embd",
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "tp_cp",
    "TENSOR_AND_DATA_PARALLEL_GROUP": "tp_dp",
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "tp_dp_cp",
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
}
"""Names of Megatron's ``ProcessGroupCollection`` by the description that torch has of a group."""

_HOST = "_GLOO"
"""End of the description of a group's twin for host memory."""

_PLACES = {
    "tp": "get_tensor_model_parallel_rank",
    "pp": "get_pipeline_model_parallel_rank",
    "dp": "get_data_parallel_rank",
    "cp": "get_context_parallel_rank",
    "ep": "get_expert_model_parallel_rank",
}
"""Functions that return a rank's coordinates, by the name of the coordinate."""


class MegatronGroups(Note):
    """Labels each group when it is created, and describes the rank once all are."""

    name = "megatron_groups"
    target = "megatron.core.parallel_state"

    def install(self, module: Any) -> None:
        self.replace(module, "create_group", _description, _label)
        self.replace(module, "initialize_model_parallel", after=lambda *_: _describe(module))


class MegatronSteps(StepPatch):
    """Numbers the training steps of this process from 1: runs of a schedule with a backward.

    Calls of an evaluation belong to the training step before it.
    """

    name = "megatron_steps"
    target = "megatron.core.pipeline_parallel.schedules"

    def install(self, module: Any) -> None:
        for name in (
            "forward_backward_no_pipelining",
            "forward_backward_pipelining_with_interleaving",
            "forward_backward_pipelining_without_interleaving",
        ):
            self.replace(module, name, self._run)

    def _run(self, _args: Any, kwargs: dict[str, Any]) -> None:
        # The schedules have keyword arguments only.
        if not kwargs.get("forward_only"):
            rows = int(kwargs["num_microbatches"]) * int(kwargs["micro_batch_size"])
            self._next(rows * int(kwargs["seq_length"]))


def _description(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    found = args[5] if len(args) > 5 else kwargs.get("group_desc")
    return found if isinstance(found, str) else None


def _label(description: str, group: Any) -> None:
    # Ranks outside a group get a number in its place.
    if not hasattr(group, "group_name"):
        return
    plain = description.removesuffix(_HOST)
    name = _NAMES.get(plain)
    if name is not None:
        suffix = process_groups.CPU_SUFFIX if plain != description else ""
        process_groups.name(group, name + suffix)


def _describe(module: Any) -> None:
    tracer = session.current()
    if tracer is None:
        return
    labels = {}
    for name, function in _PLACES.items():
        place, size = (
            getattr(module, one, None)
            for one in (function, function[: -len("rank")] + "world_size")
        )
        if place is not None and size is not None and size() > 1:
            labels[name] = str(place())
    tracer.describe(labels=labels)
