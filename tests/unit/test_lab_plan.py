from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ncclscope.errors import LaboratoryError
from ncclscope.lab.faults import FAULTS, fault_named, fault_names
from ncclscope.lab.faults.dispatch import DivergentDispatch
from ncclscope.lab.plan import Program

# The contract's kinds.
KINDS = {
    "capture_mismatch",
    "comm_swap",
    "dead_rank",
    "dtype_mismatch",
    "extra_call",
    "group_order",
    "missing_call",
    "not_joined",
    "op_mismatch",
    "order_cycle",
    "p2p_mismatch",
    "redop_mismatch",
    "root_mismatch",
    "size_mismatch",
    "split_mismatch",
    "stalled",
}
DIVERGING = [name for name in FAULTS if name != "none"]


def test_every_kind_has_a_fault() -> None:
    assert {fault.kind for fault in FAULTS.values()} == {*KINDS, None}


def test_the_command_needs_no_torch() -> None:
    program = (
        "import sys, ncclscope.lab.launcher, ncclscope.lab.faults, ncclscope.lab.plan;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_ranks_are_numbered_replica_by_replica() -> None:
    program = Program(tp=4, dp=2)
    assert program.world_size == 8
    assert program.place(6) == (1, 2)
    assert program.replica(1) == (4, 5, 6, 7)
    assert program.counterparts(2) == (2, 6)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("tp", {"label": "tp:0", "ranks": [2, 3]}),
        ("dp", {"label": "dp:0", "ranks": [1, 3, 5]}),
        ("world", {"label": "world", "ranks": [0, 1, 2, 3, 4, 5]}),
    ],
)
def test_communicators_are_named_as_in_a_verdict(kind: str, expected: dict[str, object]) -> None:
    assert Program(tp=2, dp=3).communicator(kind, 3) == expected


@pytest.mark.parametrize("name", FAULTS)
def test_a_seed_determines_where_the_fault_is(name: str) -> None:
    assert Program(fault=name, seed=7) == Program(fault=name, seed=7)
    places = {
        (program.fault_rank, program.fault_step, program.fault_layer)
        for program in (Program(fault=name, seed=seed) for seed in range(20))
    }
    assert len(places) > 10


@pytest.mark.parametrize("seed", range(20))
def test_the_drawn_place_is_inside_the_run(seed: int) -> None:
    program = Program(tp=2, dp=2, steps=2, layers=1, seed=seed)
    assert 0 <= program.fault_rank < 4
    assert 1 <= program.fault_step <= 2
    assert program.fault_layer == 0


def test_a_given_place_is_kept() -> None:
    program = Program(fault_rank=5, fault_step=2, fault_layer=3)
    assert (program.fault_rank, program.fault_step, program.fault_layer) == (5, 2, 3)


def test_arguments_make_the_same_program_again() -> None:
    program = Program(seed=3, fault="wrong_op")
    assert Program(**program.to_dict()) == program


def test_batches_differ_by_step_and_replica_in_odd_and_even_numbers() -> None:
    program = Program(fault="none")
    batches = [program.tokens(step, replica) for step in range(1, 17) for replica in (0, 1)]
    assert batches == [program.tokens(step, replica) for step in range(1, 17) for replica in (0, 1)]
    assert {tokens % 2 for tokens in batches} == {0, 1}
    assert len(set(batches)) > 8
    assert max(batches) <= program.max_tokens


def test_an_idle_replica_runs_a_dummy_token() -> None:
    program = Program(fault="none", steps=100, fault_step=1)
    idle = [step for step in range(2, 101) if not program.tokens(step, 0)]
    assert idle
    assert {program.rows(step, 0) for step in idle} == {1}


@pytest.mark.parametrize("name", DIVERGING)
@pytest.mark.parametrize("seed", range(10))
def test_only_a_fault_about_idle_replicas_meets_one(name: str, seed: int) -> None:
    program = Program(fault=name, seed=seed)
    replica, _ = program.place(program.fault_rank)
    tokens = [program.tokens(program.fault_step, index) for index in range(program.dp)]
    if FAULTS[name].idle:
        assert tokens.pop(replica) == 0
    assert all(count >= 2 for count in tokens)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tp": 0}, "tp=0 is too small"),
        ({"tp": 1, "dp": 1}, "a single rank has no peers"),
        ({"layers": 0}, "layers=0 is too small"),
        ({"max_tokens": 1}, "max_tokens=1 is too small"),
        ({"backend": "mpi"}, "there is no backend 'mpi' here"),
        ({"fault": "gremlin"}, "there is no fault 'gremlin'"),
        ({"fault_rank": 8}, "fault_rank=8 is outside the run"),
        ({"fault_step": 0}, "fault_step=0 is outside the run"),
        ({"fault_layer": 20}, "fault_layer=20 is outside the run"),
        ({"dp": 1}, "divergent_dispatch cannot happen with dp=1"),
        ({"tp": 1, "fault": "wrong_op"}, "wrong_op cannot happen with tp=1"),
        ({"dp": 1, "fault": "zero_token_skip"}, "zero_token_skip cannot happen with dp=1"),
        ({"dp": 1, "fault": "stale_sizes"}, "stale_sizes cannot happen with dp=1"),
        ({"tp": 1, "fault": "captured_call"}, "captured_call cannot happen with 2 ranks"),
        ({"tp": 1, "fault": "wrong_peer"}, "wrong_peer cannot happen with 2 ranks"),
        ({"tp": 1, "fault": "reordered_group"}, "reordered_group cannot happen with 2 ranks"),
        (
            {"backend": "nccl", "fault": "silent_link"},
            "silent_link cannot happen with the backend nccl",
        ),
    ],
)
def test_an_impossible_program_is_refused_in_one_line(
    arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(LaboratoryError) as caught:
        Program(**arguments)  # type: ignore[arg-type]
    assert caught.value.message == message
    assert caught.value.help
    assert "\n" not in str(caught.value)


def test_faults_are_found_by_name_and_the_default_comes_first() -> None:
    assert next(iter(FAULTS)) == Program().fault
    assert all(fault_named(name).name == name for name in FAULTS)
    assert all(fault.help for fault in FAULTS.values())


def test_without_a_fault_nothing_is_planted() -> None:
    planted = Program(fault="none").planted()
    assert planted["kind"] is None
    assert planted["diverging_ranks"] == []


@pytest.mark.parametrize("name", DIVERGING)
@pytest.mark.parametrize("seed", range(5))
def test_a_planted_fault_is_described_in_the_terms_of_the_verdict(name: str, seed: int) -> None:
    program = Program(fault=name, seed=seed)
    planted = program.planted()
    assert planted["fault"] == name
    assert planted["kind"] in KINDS
    stalled = planted["kind"] == "stalled"
    assert planted["diverging_ranks"] == ([] if stalled else [program.fault_rank])
    assert program.fault_rank in planted["comm"]["ranks"]
    assert planted["step"] == program.fault_step
    assert planted["summary"].startswith(f"rank {program.fault_rank} in step {program.fault_step} ")
    assert planted["odd"] or planted["peers"]
    assert planted["odd"] != planted["peers"]


def test_the_swap_of_the_default_model_is_seventeen_layers_long() -> None:
    for seed in range(20):
        program = Program(seed=seed)
        layers = DivergentDispatch().layers(program)
        assert len(layers) == 17
        assert layers[-1] < program.layers
        assert program.planted()["extent"] == 17


def test_a_shallow_model_swaps_in_all_layers() -> None:
    assert DivergentDispatch().layers(Program(layers=3)) == range(3)


@pytest.mark.parametrize("seed", range(20))
def test_stale_sizes_leave_every_replica_a_row(seed: int) -> None:
    program = Program(fault="stale_sizes", seed=seed)
    planted = program.planted()
    assert sum(planted["odd"]["sizes"]) == sum(planted["peers"]["sizes"]) - 1
    assert min(planted["odd"]["sizes"]) >= 1
    own = program.place(program.fault_rank)[0]
    assert planted["odd"]["sizes"][own] == planted["peers"]["sizes"][own]


@pytest.mark.parametrize("rank", range(4))
def test_a_wrong_root_is_neither_the_right_one_nor_the_rank_itself(rank: int) -> None:
    planted = Program(fault="wrong_root", fault_rank=rank).planted()
    assert planted["peers"]["root"] == 0
    assert planted["odd"]["root"] not in {0, rank}


def install(folder: Path, entry: str, source: str) -> None:
    """Put a distribution with one fault into a folder for the search path."""
    about = folder / "other_faults-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other-faults\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[ncclscope.faults]\n{entry}\n")
    (folder / f"{folder.name}.py").write_text(source)


OTHER = """
from ncclscope.lab.faults.base import Fault


class Other(Fault):
    name = "other"
"""


def test_a_fault_of_another_package_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "other_good", "other = other_good:Other", OTHER)
    monkeypatch.syspath_prepend(tmp_path / "other_good")
    fault_named.cache_clear()

    assert fault_names() == [*FAULTS, "other"]
    assert Program(fault="other").planted()["fault"] == "other"
    fault_named.cache_clear()


@pytest.mark.parametrize(
    ("folder", "entry", "message"),
    [
        ("other_gone", "other = other_nowhere:Other", "cannot be loaded"),
        ("other_misnamed", "another = other_misnamed:Other", "with that name"),
        ("other_none", "other = pathlib:Path", "a class derived from Fault"),
    ],
)
def test_an_invalid_one_is_reported_with_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, entry: str, message: str
) -> None:
    install(tmp_path / folder, entry, OTHER)
    monkeypatch.syspath_prepend(tmp_path / folder)

    with pytest.raises(LaboratoryError, match=message) as caught:
        fault_named(entry.partition(" ")[0])
    assert "of other-faults" in caught.value.message
    assert caught.value.help == "update or remove other-faults"
