"""vLLM's exchange of tokens by FlashInfer: the class is vLLM's, what it calls below is not.

FlashInfer needs GPUs. In its place a stand-in gathers the tokens over gloo.
"""

from __future__ import annotations

import sys
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ncclscope import diagnose
from ncclscope_patches.vllm import prepare_finalize
from tests.integration.c10d_ranks import calls, fields, join, main, run_ranks

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(500)]
pytest.importorskip("torch")

RANKS, DIVERGING = 3, 2
EXPERTS, HIDDEN, LAYERS = 8, 16, 2
FIELDS = ("op", "shape", "dtype")
PLACE = "vllm.model_executor.layers.fused_moe.prepare_finalize"
IMPORTED = ("vllm.distributed.parallel_state", f"{PLACE}.flashinfer_nvlink_one_sided")
"""Imported once, which takes 20 s of a processor, and not by each rank."""


class Exchange:
    """In the place of FlashInfer's ``MoeAlltoAll`` and of vLLM's manager above it."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.world_size = group.size()
        self.moe_alltoall = self

    def dispatch(self, input_payloads: list[Any], **_given: Any) -> list[Any]:
        """Gather each payload from all ranks, as FlashInfer's ``dispatch`` returns them."""
        return [self._gathered(payload) for payload in input_payloads]

    def combine_into(self, payload: Any, output: Any, **_given: Any) -> None:
        """Return to each rank its own tokens."""
        output.copy_(payload[self.group.rank()][: output.shape[0]])

    def _gathered(self, payload: Any) -> Any:
        import torch

        parts = [torch.empty_like(payload) for _ in range(self.world_size)]
        self.group.allgather([parts], [payload]).wait()
        return torch.stack(parts)


class Layer:
    """A layer of experts of vLLM, over the stand-in."""

    def __init__(self, cls: Any, manager: Exchange) -> None:
        self.cls = cls.__new__(cls)
        self.cls.all2all_manager = manager

    def dispatch(self, experts: int = EXPERTS) -> Any:
        import torch

        hidden = torch.ones(4, HIDDEN)
        ids, weights = torch.zeros(4, 2, dtype=torch.int32), torch.ones(4, 2)
        config = SimpleNamespace(quant_dtype=None, is_scale_swizzled=False)
        return self.cls.prepare(
            hidden, weights, ids, experts, None, False, config, defer_input_quant=True
        )

    def combine(self) -> None:
        import torch

        output = torch.empty(4, HIDDEN)
        self.cls.finalize(output, torch.ones(4 * RANKS, HIDDEN), None, None, False, None)
        assert torch.equal(output, torch.ones(4, HIDDEN))


def layers() -> list[Layer]:
    import vllm.distributed.parallel_state as parallel_state

    group = join().group.WORLD
    module = import_module(f"{PLACE}.flashinfer_nvlink_one_sided")
    parallel_state.get_ep_group = lambda: SimpleNamespace(cpu_group=group)  # type: ignore[assignment,return-value]
    module.get_local_sizes = lambda: None
    manager = Exchange(group)
    cls = module.FlashInferNVLinkOneSidedPrepareAndFinalize
    return [Layer(cls, manager) for _ in range(LAYERS)]


def exchange(rank: int) -> None:
    for layer in layers():
        layer.dispatch()
        layer.combine()


def leave_out_a_dispatch(rank: int) -> None:
    first, second = layers()
    first.dispatch()
    first.combine()
    if rank != DIVERGING:
        second.dispatch(EXPERTS)
    else:
        # It goes on, with the same call of gloo below, so that the job does not hang.
        second.cls.runtime_max_tokens_per_rank = 4
        second.combine()
        for shape, dtype in (((4, HIDDEN), "float32"), ((4, 2), "int32"), ((4, 2), "float32")):
            import torch

            second.cls.all2all_manager._gathered(torch.zeros(shape, dtype=getattr(torch, dtype)))


def test_layers_share_a_sequence_beside_the_group_s(rings: Path) -> None:
    run = run_ranks(__file__, "exchange", rings, size=RANKS, timeout=400, preload=IMPORTED)

    verdict = diagnose(run)
    assert verdict.status == "ok", verdict.summary
    step = [("dispatch", (EXPERTS, HIDDEN), "float32"), ("combine", (HIDDEN,), "float32")]
    for rank in run.ranks:
        recorded = calls(rank, "world/flashinfer")
        assert [fields(one, *FIELDS) for one in recorded] == step * LAYERS


def test_rank_that_leaves_out_a_dispatch_is_named(rings: Path) -> None:
    run = run_ranks(
        __file__, "leave_out_a_dispatch", rings, size=RANKS, timeout=400, preload=IMPORTED
    )

    cause = diagnose(run).cause
    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("op_mismatch", (DIVERGING,))
    assert "posted combine [16] float32 as call 3 on world/flashinfer" in cause.summary


@pytest.mark.parametrize(
    "probe",
    [
        prepare_finalize.FlashInferOneSidedProbe,
        prepare_finalize.FlashInferTwoSidedProbe,
        prepare_finalize.MoonEpProbe,
        prepare_finalize.MoriProbe,
    ],
)
def test_vllm_s_classes_have_these_parameters(probe: Any) -> None:
    if probe.backend == "mori":
        ops = SimpleNamespace(EpDispatchCombineOp=object)  # named in annotations
        sys.modules.setdefault("mori", SimpleNamespace(ops=ops))  # type: ignore[arg-type]
    owner = getattr(import_module(probe.target), probe.owner)
    assert list(signature(owner.prepare).parameters)[:5] == [
        *("self", "a1", "topk_weights", "topk_ids", "num_experts"),
    ]
    assert list(signature(owner.finalize).parameters)[:2] == ["self", "output"]


if __name__ == "__main__":
    main(globals())
