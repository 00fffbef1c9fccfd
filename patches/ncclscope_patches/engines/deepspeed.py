"""Label DeepSpeed's process groups, and record the steps of its engines.

DeepSpeed creates groups without a description and keeps them in variables of its modules, so
their names are read from there once a function that creates some has returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ncclscope.tracing import session
from ncclscope_patches.engines.steps import StepPatch
from ncclscope_patches.probes import process_groups
from ncclscope_patches.probes.probe import Note

# The first name of a group is its label, so the wider roles come last.
_GROUPS = {
    "_TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "_MODEL_PARALLEL_GROUP": "mp",
    "_EXPERT_PARALLEL_GROUP": "ep",
    "_EXPERT_DATA_PARALLEL_GROUP": "expert_dp",
    "_ALL_TO_ALL_GROUP": "all_to_all",
    "_ZERO_PARAM_INTRA_PARALLEL_GROUP": "zero_param_intra",
    "_DATA_PARALLEL_GROUP": "dp",
    "_WORLD_GROUP": "dp",
}
"""Labels by the variable of ``deepspeed.utils.groups`` that holds a group, or groups by name.

The copy of the group of all ranks is the data-parallel group unless the user gives another one."""

_CREATING = (
    "_clone_world_group",
    "_create_expert_and_data_parallel",
    "_create_expert_data_and_model_parallel",
    "_create_zero_param_parallel_group",
    "_get_local_all_to_all_group",
    "_init_tp_groups_with_new_group",
    "_init_tp_mesh_device",
)

_SEQUENCE = {"_SEQUENCE_PARALLEL_GROUP": "sp", "_SEQUENCE_DATA_PARALLEL_GROUP": "dp_sp"}

_GRID = {
    "slice_proc_group": "tp",
    "pp_proc_group": "pp",
    "dp_proc_group": "dp",
    "ds_model_proc_group": "mp",
}
"""Labels by attribute of a ``PipelineParallelGrid``."""


class DeepSpeedGroups(Note):
    """Labels the groups of ``deepspeed.utils.groups``."""

    name = "deepspeed_groups"
    target = "deepspeed.utils.groups"

    def install(self, module: Any) -> None:
        for name in _CREATING:
            self.replace(module, name, after=lambda *_: _label(vars(module), _GROUPS))


class DeepSpeedSequence(Note):
    """Labels the groups of sequence parallelism."""

    name = "deepspeed_sequence"
    target = "deepspeed.runtime.sequence_parallel.parallel_state_sp"

    def install(self, module: Any) -> None:
        name = "initialize_sequence_parallel"
        self.replace(module, name, after=lambda *_: _label(vars(module), _SEQUENCE))


class DeepSpeedGrid(Note):
    """Labels the groups of a pipeline, and describes the rank's place in it."""

    name = "deepspeed_grid"
    target = "deepspeed.runtime.pipe.topology"

    def install(self, module: Any) -> None:
        grid = module.PipelineParallelGrid
        self.replace(grid, "__init__", after=lambda token, _: _describe(token[0][0]))


class DeepSpeedSteps(StepPatch):
    """Records the global step of the engine that computes, by the engine's own number.

    The number is that of DeepSpeed's log: one for each update of the weights, from 1. Calls of an
    evaluation belong to the training step before it.
    """

    name = "deepspeed_steps"
    target = "deepspeed.runtime.pipe.engine"

    def __init__(self) -> None:
        super().__init__()
        self._last = (0, 0)

    def install(self, module: Any) -> None:
        # A pipeline receives activations before its first forward.
        self.replace(module.PipelineEngine, "train_batch", self._step)
        self.replace(module.DeepSpeedEngine, "forward", self._step)

    def _step(self, args: tuple[Any, ...], _kwargs: Any) -> None:
        engine = args[0]
        step = (id(engine), engine.global_steps + 1)
        if engine.module.training and step != self._last and self._begin(step[1], None):
            self._last = step


def _label(holder: Mapping[str, Any], names: Mapping[str, str]) -> None:
    labelled: set[int] = set()
    for variable, label in names.items():
        for group in _groups(holder.get(variable)):
            if id(group) not in labelled:
                labelled.add(id(group))
                process_groups.name(group, label)


def _groups(held: Any) -> Iterator[Any]:
    """Yield the process groups that a variable holds; ranks outside a group have a number."""
    for group in held.values() if isinstance(held, dict) else (held,):
        if hasattr(group, "group_name"):
            yield group


def _describe(grid: Any) -> None:
    _label(vars(grid), _GRID)
    tracer = session.current()
    if tracer is None:
        return
    places = (
        ("pp", grid.pipe_parallel_size, grid.get_stage_id),
        ("dp", grid.data_parallel_size, grid.get_data_parallel_id),
        ("tp", grid.model_parallel_size, grid.get_slice_parallel_rank),
    )
    tracer.describe(labels={name: str(place()) for name, size, place in places if size > 1})
