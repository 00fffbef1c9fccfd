"""What must be equal on all members of a communicator, and what may differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclscope.model.memory import running_hashes
from ncclscope.model.signature import (
    BASE,
    EXPERT_OPS,
    MASK,
    P2P_OPS,
    VECTOR_OPS,
    canonical_dtype,
    canonical_op,
    canonical_redop,
    extend,
    sign,
    stretch,
)
from ncclscope.ring.reader import hash_before
from tests.support.programs import run_program

CALL: dict[str, Any] = {"dtype": "float32", "shape": (4, 3), "out_shape": (8, 3)}

# Operation, what one member passes, what another passes, and whether they agree.
CASES = [
    # Every member passes as many elements as the others, in whatever shape.
    *(
        (op, {"shape": (4, 3)}, change, agree)
        for op in ("all_reduce", "all_gather", "reduce_scatter", "reduce", "broadcast", "gather",
                   "all_to_all")
        for change, agree in (
            ({"shape": (12,)}, True),
            ({"shape": (3, 2, 2, 1)}, True),
            ({"numel": 12, "shape": None}, True),
            ({"shape": (4, 4)}, False),
            ({"shape": ()}, False),
            ({"shape": (0,)}, False),
            ({"shape": None}, False),
            ({"out_shape": (1,)}, True),
        )
    ),
    # The element type, the reduction and the root are everybody's.
    *(
        (op, {"dtype": "float32", "redop": "sum", "root": 0}, change, False)
        for op in ("all_reduce", "all_gatherv", "scatter", "barrier", "something_new")
        for change in ({"dtype": "bfloat16"}, {"dtype": None}, {"redop": "max"}, {"redop": None},
                       {"root": 1}, {"root": None})
    ),
    # Own rows of a v-collective are one's own; the list of all rows and the row are not.
    *(
        (op, {"shape": (3, 5), "sizes": (3, 7)}, change, agree)
        for op in sorted(VECTOR_OPS)
        for change, agree in (
            ({"shape": (7, 5)}, True),
            ({"shape": (7, 1, 5)}, True),
            ({"out_shape": (10, 5)}, True),
            ({"shape": (3, 6)}, False),
            ({"sizes": (3, 8)}, False),
            ({"sizes": (7, 3)}, False),
            ({"sizes": (3, 7, 0)}, False),
            ({"sizes": None}, False),
            ({"numel": 99}, True),
        )
    ),
    # Splits are between two members; analyzers compare them pairwise.
    ("all_to_all", {"shape": (6, 5), "sizes": (2, 4)}, {"sizes": (5, 1)}, True),
    ("all_to_all", {"shape": (6, 5), "sizes": (2, 4)}, {"shape": (8, 5)}, True),
    ("all_to_all", {"shape": (6, 5), "sizes": (2, 4)}, {"shape": (6, 4)}, False),
    ("all_to_all", {"shape": (6, 5), "sizes": (2, 4)}, {"sizes": None}, False),
    # All create the same group with the same backend.
    ("new_group", {"sizes": (2, 3), "dtype": "gloo"}, {"sizes": (3, 2)}, False),
    ("new_group", {"sizes": (2, 3), "dtype": "gloo"}, {"sizes": (2, 3, 4)}, False),
    ("new_group", {"sizes": (2, 3), "dtype": "gloo"}, {"dtype": "nccl"}, False),
    ("new_group", {"sizes": (2, 3), "dtype": "gloo"}, {"shape": (1,)}, True),
    # Only the root of a scatter has an input.
    ("scatter", {"shape": (8, 3), "out_shape": (4, 3)}, {"shape": None}, True),
    ("scatter", {"shape": (8, 3), "out_shape": (4, 3)}, {"out_shape": (12,)}, True),
    ("scatter", {"shape": (8, 3), "out_shape": (4, 3)}, {"out_shape": (4, 4)}, False),
    # Experts and hidden size are everybody's.
    *(
        (op, {"shape": (8, 16)}, change, agree)
        for op in sorted(EXPERT_OPS)
        for change, agree in (
            ({"shape": (16, 8)}, False),
            ({"shape": (8, 32)}, False),
            ({"shape": (16,)}, False),
            ({"out_shape": (3, 16)}, True),
        )
    ),
    # Of what is not known, nothing but its name is compared.
    ("something_new", {"shape": (1,)}, {"shape": (2,)}, True),
    ("barrier", {"shape": None}, {"shape": (1,)}, True),
]  # fmt: skip


@pytest.mark.parametrize(("op", "one", "change", "agree"), CASES)
def test_what_must_agree(op: str, one: dict[str, Any], change: dict[str, Any], agree: bool) -> None:
    assert (sign(op, **one) == sign(op, **{**one, **change})) is agree


def test_operations_differ() -> None:
    ops = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "all_gatherv"]
    assert len({sign(op, **CALL) for op in ops}) == len(ops)


@pytest.mark.parametrize("op", sorted(P2P_OPS))
def test_sends_have_no_signature_and_nothing_else_has_none(op: str) -> None:
    assert sign(op, **CALL) == 0
    assert all(sign(f"op{number}") % 2 for number in range(1000))
    assert all(0 < sign(f"op{number}") <= MASK for number in range(1000))


@pytest.mark.parametrize(
    ("spelled", "op"),
    [
        ("AllReduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("ALL_GATHER_INTO_TENSOR", "all_gather"),
        ("reduce_scatter_tensor", "reduce_scatter"),
        ("all_to_all_single", "all_to_all"),
        ("AllGatherV", "all_gatherv"),
        ("isend", "send"),
        ("recv_anysource", "recv"),
        ("something_New", "something_new"),
    ],
)
def test_operations_have_one_spelling(spelled: str, op: str) -> None:
    assert canonical_op(spelled) == op
    assert canonical_op(op) == op


def test_types_and_reductions_have_one_spelling() -> None:
    assert [canonical_dtype(name) for name in ("torch.bfloat16", "BFloat16", "bfloat16")] == [
        "bfloat16"
    ] * 3
    assert [canonical_redop(name) for name in ("SUM", "ReduceOp.SUM", "RedOpType.SUM", "sum")] == [
        "sum"
    ] * 4


PROGRAM = """
import sys
from ncclscope.model.signature import sign
for op in ("all_reduce", "all_gatherv", "all_to_all", "scatter", "barrier", "κόμμα", "\\udce9"):
    for dtype in (None, "float32", "\\udce9"):
        for sizes in (None, (1, 2, 3)):
            print(sign(op, dtype=dtype, redop="sum", root=3, shape=(4, 5), sizes=sizes,
                       out_shape=(2, 2)))
"""


def test_signatures_are_the_same_in_every_process() -> None:
    output = [
        run_program(PROGRAM, PYTHONHASHSEED=seed, PYTHONUTF8=utf8)
        for seed, utf8 in (("0", "0"), ("1", "1"), ("random", "0"))
    ]
    assert output[0].returncode == 0, output[0].stderr
    assert output[0].stdout == output[1].stdout == output[2].stdout
    assert len(set(output[0].stdout.split())) > 25


def test_signatures_do_not_change_from_version_to_version() -> None:
    # Rings and traces hold them: other numbers need another version of both formats.
    assert [
        sign("all_reduce", dtype="float32", redop="sum", shape=(15, 2)),
        sign("all_gatherv", dtype="int32", shape=(14, 256), sizes=(14, 16)),
        sign("barrier"),
    ] == [0x1C2DE0FFC062233F, 0xF91C4ABC9E5D9441, 0x288A20572C0230D3]
    assert BASE % 2 == 1
    assert BASE < 1 << 30


signatures = st.lists(st.integers(0, MASK), max_size=60)


@given(signatures)
def test_running_hashes_are_extended_one_by_one(values: list[int]) -> None:
    expected = [0]
    for value in values:
        expected.append(extend(expected[-1], value))
    assert running_hashes(values) == expected
    assert all(0 <= value <= MASK for value in expected)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, MASK), st.integers(2000, 5000))
def test_long_running_hashes(value: int, count: int) -> None:
    values = [(value * number + number) & MASK for number in range(count)]
    hashes = running_hashes(values)
    running = 0
    for number, each in enumerate(values):
        assert hashes[number] == running
        running = extend(running, each)
    assert hashes[count] == running


@given(signatures, signatures, signatures)
def test_a_stretch_depends_on_nothing_before_it(
    one: list[int], other: list[int], middle: list[int]
) -> None:
    def hash_of(values: list[int]) -> int:
        return running_hashes(values)[-1]

    expected = hash_of(middle)
    for before in (one, other):
        found = stretch(hash_of(before), hash_of(before + middle), len(middle))
        assert found == expected


@given(signatures, st.integers(0, MASK))
def test_a_hash_can_be_taken_back(values: list[int], value: int) -> None:
    before = running_hashes(values)[-1]
    assert hash_before(extend(before, value), value) == before


@given(signatures.filter(lambda values: len(values) > 1), st.data())
def test_other_orders_have_other_hashes(values: list[int], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(values))
    same = running_hashes(values)[-1] == running_hashes(shuffled)[-1]
    assert same == (values == shuffled)


@given(signatures.filter(bool))
def test_signatures_follow_from_hashes(values: list[int]) -> None:
    hashes = np.array(running_hashes(values), np.uint64)
    found = hashes[1:] - hashes[:-1] * np.uint64(BASE)
    assert found.tolist() == values
