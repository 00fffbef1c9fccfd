"""What is taken from the arguments of a ProcessGroup method, for calls that gloo cannot make."""

from __future__ import annotations

from typing import Any

import pytest

from ncclscope.model.signature import sign
from ncclscope_patches.probes import recording
from ncclscope_patches.probes.posted_calls import READERS, note_redop, on_cpu

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

FIELDS = ("op", "shape", "dtype", "redop", "root", "peer", "numel", "sizes", "out_shape")
GROUP = object()


def ones(*shape: int) -> Any:
    return torch.ones(*shape)


def read(method: str, *arguments: Any, **named: Any) -> dict[str, Any]:
    values = READERS[method]((GROUP, *arguments), named)
    found = dict(zip(FIELDS, values, strict=False))
    return {name: value for name, value in found.items() if value is not None}


def test_gathered_lists_of_uneven_tensors_have_sizes() -> None:
    outputs, own = [ones(2, 4), ones(3, 4)], ones(2, 4)
    expected = {"op": "all_gatherv", "shape": (2, 4), "dtype": torch.float32, "sizes": (2, 3)}

    assert read("allgather", [outputs], [own]) == expected
    assert read("allgather", outputs, own) == expected
    assert read("allgather", output_tensors=[outputs], input_tensors=[own]) == expected


def test_gathered_lists_of_even_tensors_have_none() -> None:
    found = read("allgather", [[ones(2), ones(2)]], [ones(2)])

    assert found == {"op": "all_gather", "shape": (2,), "dtype": torch.float32}


def test_scattered_lists_are_seen_as_one_tensor() -> None:
    uneven = read("reduce_scatter", [ones(1, 4)], [[ones(1, 4), ones(2, 4)]])
    even = read("reduce_scatter", ones(2, 4), [ones(2, 4), ones(2, 4)])

    assert (uneven["op"], uneven["shape"], uneven["sizes"]) == ("reduce_scatterv", (3, 4), (1, 2))
    assert (even["op"], even["shape"], "sizes" in even) == ("reduce_scatter", (4, 4), False)


def test_lists_sent_to_all_agree_in_signature_however_they_are_cut() -> None:
    first = read("alltoall", [ones(2), ones(2)], [ones(1), ones(3)])
    second = read("alltoall", [ones(1), ones(2)], [ones(2), ones(2)])

    assert (first["shape"], first["sizes"]) == ((4,), (1, 3))
    assert sign(**first) == sign(**second)


def test_tensors_without_dimensions_count_as_one_row() -> None:
    scalar = torch.tensor(1.0)

    assert read("alltoall", [scalar, scalar], [scalar, scalar])["sizes"] == (1, 1)
    assert read("reduce_scatter", [scalar], [[scalar, scalar]])["shape"] == (2,)


@pytest.mark.parametrize(
    ("method", "op", "numel"),
    [
        ("allgather_coalesced", "all_gather", 5),
        ("allgather_into_tensor_coalesced", "all_gather", 5),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter", 5),
    ],
)
def test_calls_over_several_tensors_have_their_sum_and_no_shape(
    method: str, op: str, numel: int
) -> None:
    found = read(method, [ones(4), ones(6)], [ones(2), ones(3)])

    assert (found["op"], found["numel"], "shape" in found) == (op, numel, False)


def test_reduction_is_read_from_options_and_from_plain_arguments() -> None:
    options = dist.ReduceScatterOptions()
    options.reduceOp = dist.ReduceOp.AVG

    assert read("_reduce_scatter_base", ones(2), ones(4), options)["redop"] == "avg"
    assert read("_reduce_scatter_base", ones(2), ones(4))["redop"] == "sum"
    assert read("allreduce", [ones(2)], op=dist.ReduceOp.BXOR)["redop"] == "bxor"
    assert read("reduce", ones(2), 1, dist.ReduceOp.MAX)["redop"] == "max"
    assert read("reduce", ones(2), root=1, op=dist.ReduceOp.MAX)["root"] == 1


def test_reduction_that_was_noted_counts_for_one_object_and_one_call() -> None:
    noted, other = dist.AllreduceOptions(), dist.AllreduceOptions()
    noted.reduceOp = other.reduceOp = dist.ReduceOp.MIN
    note_redop(noted, dist.ReduceOp.MAX)

    assert read("allreduce", [ones(2)], noted)["redop"] == "max"
    assert read("allreduce", [ones(2)], noted)["redop"] == "min"

    note_redop(noted, dist.ReduceOp.MAX)

    assert read("allreduce", [ones(2)], other)["redop"] == "min"


def test_premultiplied_sum_differs_from_a_sum() -> None:
    redop = dist._make_nccl_premul_sum(2.0)

    assert read("allreduce", [ones(2)], op=redop)["redop"] == "premul_sum"


@pytest.mark.parametrize("name", ["gather_single", "gather_into_tensor"])
def test_gathers_into_one_tensor(name: str) -> None:
    options = dist.GatherOptions()
    options.rootRank = 1
    expected = {"op": "gather", "shape": (3,), "dtype": torch.float32, "root": 1}

    assert read(name, ones(6), ones(3), options) == expected
    assert read(name, output=ones(6), input=ones(3), opts=options) == expected


HOOKS = ("abort", "post", "pre")


def test_every_method_of_a_process_group_that_posts_is_read() -> None:
    """Fails when torch gives ProcessGroup a method that nobody here has thought about."""
    known = {
        *READERS,
        *("_start_coalescing", "_end_coalescing", "_id", "_backend_id", "_device_types"),
        *("_get_backend", "_get_backend_name", "_get_sequence_number_for_group"),
        *("_enable_collectives_timing", "_has_hooks", "_register_backend"),
        *("_register_on_completion_hook", "_set_default_backend", "_set_group_desc"),
        *("_set_group_name", "_set_sequence_number_for_group", "_wait_for_pending_works"),
        *("abort", "bound_device_id", "boxed", "get_group_store", "group_desc", "group_name"),
        *("merge_remote_group", "name", "rank", "set_timeout", "shutdown", "size", "split_group"),
        *("unbox", "use_pg_for_symm_mem_rendezvous", "_pybind11_conduit_v1_", "BackendType"),
        # Since torch 2.15. A window is memory that others write to; new_window posts no collective
        # of a process group.
        *("_add_ephemeral_timeout", "get_backend", "get_reconfigure_handle", "new_window"),
        *("reconfigure", "supports_abort_hooks", "supports_completion_hooks"),
        *("supports_reconfigure", "supports_window"),
        *(f"{verb}_{kind}_hook" for verb in ("register", "unregister") for kind in HOOKS),
        *dist.ProcessGroup.BackendType.__members__,
    }

    assert {name for name in dir(dist.ProcessGroup) if not name.startswith("__")} <= known


def test_device_is_that_of_the_first_tensor() -> None:
    assert on_cpu((GROUP, [[ones(2)]], None))
    assert not on_cpu((GROUP, [torch.ones(2, device="meta")]))
    assert not on_cpu((GROUP, dist.BarrierOptions()))


def test_reductions_are_known_before_torch_distributed_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # With torch 2.11 the probe is installed while torch.distributed has no ReduceOp yet.
    dist = pytest.importorskip("torch.distributed")
    redop = dist.ReduceOp.MAX
    monkeypatch.setattr(recording, "_redops", {})
    monkeypatch.setattr(recording, "_redop_numbers", {})
    monkeypatch.delattr(dist, "ReduceOp")

    recording._learn_redops()

    assert recording.redop_name(redop) == "max"
