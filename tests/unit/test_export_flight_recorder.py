"""Ring -> Flight Recorder dumps -> the same verdict, as far as dumps can hold it."""

from __future__ import annotations

import json
import pickletools
from pathlib import Path
from typing import Any

import pytest

from ncclscope.engine.verdict import diagnose
from ncclscope.export.flight_recorder import PREFIX, write_json, write_pickles
from ncclscope.model import Run
from ncclscope.readers import open_run
from tests.comparison.fr_trace import Task, answers
from tests.support.cluster import Cluster, agrees
from tests.support.dumps import Job, history
from tests.support.export_runs import SCENARIOS, prepare

# Of these nothing is in a dump: reduction, root, capture into a graph.
UNSEEN = {"wrong_redop", "wrong_root", "captured", "replayed"}


def gist(run: Run) -> tuple[object, ...]:
    verdict = diagnose(run)
    cause = verdict.cause
    if cause is None:
        return (verdict.status,)
    return verdict.status, cause.kind, cause.diverging_ranks, cause.candidate_ranks, cause.seq


@pytest.mark.parametrize("write", [write_pickles, write_json])
@pytest.mark.parametrize("name", SCENARIOS)
def test_rings_say_the_same_as_the_dumps_made_of_them(
    tmp_path: Path, name: str, write: Any
) -> None:
    run = prepare(tmp_path / "rings", name).run()
    (tmp_path / "dumps").mkdir()

    write(run, tmp_path / "dumps")

    back = open_run(tmp_path / "dumps")
    assert back.notes == ()
    # Dumps hold no roots and reductions, but calls that did not complete.
    unseen = {"calm": "ok"} | dict.fromkeys(UNSEEN, "unknown")
    assert gist(back) == ((unseen[name],) if name in unseen else gist(run))
    assert agrees(diagnose(run)) or name != "calm"


def test_calls_are_the_same_apart_from_what_dumps_do_not_hold(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 4)
    cluster.history("tp:0", 3)
    for op in ("all_gather", "reduce_scatter", "barrier", "all_to_all"):
        shape = None if op == "barrier" else (8, 2)
        cluster.post(cluster.everybody, "tp:0", op, shape=shape, dtype=shape and "bfloat16")
    for pair in ((0, 1), (2, 3)):
        cluster.history("dp:0", 2, members=pair)
    (tmp_path / "dumps").mkdir()
    run = cluster.run()

    write_pickles(run, tmp_path / "dumps")

    back = open_run(tmp_path / "dumps")
    assert {comm.ranks for comm in back.communicators.values()} == {(0, 1, 2, 3), (0, 1), (2, 3)}
    for rank, other in zip(run.ranks, back.ranks, strict=True):
        logs = {log.communicator.ranks: log for log in other.logs.values()}
        for log in rank.logs.values():
            found = logs[log.communicator.ranks].span(1, log.calls + 1)
            assert len(found) == log.calls
            for one, two in zip(log.span(1, log.calls + 1), found, strict=True):
                for field in ("op", "seq", "dtype", "shape", "site", "time_ns", "state"):
                    assert getattr(one, field) == getattr(two, field), (one, field)


@pytest.mark.slow
def test_torchs_analyzer_reads_the_dumps(tmp_path: Path) -> None:
    named = {}
    for name in ("calm", "wrong_op", "skipped", "late", "sizes", "transfers"):
        folder = tmp_path / name
        (folder / "dumps").mkdir(parents=True)
        write_pickles(prepare(folder / "rings", name).run(), folder / "dumps")
        named[name] = folder / "dumps"

    found = dict(
        zip(named, answers([Task(folder, "ascending") for folder in named.values()]), strict=True)
    )

    assert {answer.refused for answer in found.values()} == {""}
    assert found["calm"].findings == ()
    for name, rank, seq in (("wrong_op", 3, 6), ("skipped", 2, 6), ("late", 1, 6)):
        first = found[name].findings[0]
        assert (first.ranks, first.seq) == ({rank}, seq)


@pytest.mark.slow
def test_an_operation_torch_does_not_know_does_not_stop_its_analyzer(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 2)
    cluster.history("tp:0", backend="shm")
    cluster.post([0, 1], "tp:0", "fused_magic", backend="shm")
    cluster.post([0], "tp:0", done=False, backend="shm")
    (tmp_path / "dumps").mkdir()

    write_pickles(cluster.run(), tmp_path / "dumps")

    (answer,) = answers([Task(tmp_path / "dumps", "ascending")])
    assert answer.refused == ""
    assert [(named.ranks, named.seq) for named in answer.findings] == [({1}, 7)]


def test_the_pickles_hold_nothing_but_plain_values(tmp_path: Path) -> None:
    write_pickles(prepare(tmp_path / "rings", "transfers").run(), tmp_path)

    for rank in range(4):
        names = {
            op.name for op, _, _ in pickletools.genops((tmp_path / f"{PREFIX}{rank}").read_bytes())
        }
        assert not names & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "INST", "OBJ", "NEWOBJ", "BUILD"}


def test_json_says_what_the_pickle_says(tmp_path: Path) -> None:
    import pickle

    run = prepare(tmp_path / "rings", "sizes").run()
    write_pickles(run, tmp_path)
    write_json(run, tmp_path)

    for rank in range(4):
        plain = pickle.loads((tmp_path / f"{PREFIX}{rank}").read_bytes())
        assert json.loads((tmp_path / f"{PREFIX}{rank}.json").read_text()) == json.loads(
            json.dumps(plain)
        )


def test_dumps_survive_a_round_through_themselves(tmp_path: Path) -> None:
    job = Job(4, {"1": ("tp", [0, 1]), "2": ("tp", [2, 3])})
    history(job)
    for group, ranks in (("1", [0, 1]), ("2", [2, 3])):
        job.post(ranks, "_all_gather_base", group=group, outs=[[8, 2]])
    job.post([0, 1, 3], "all_reduce", state="scheduled")
    job.post([2], "broadcast", state="scheduled")
    run = open_run(job.write(tmp_path / "one"))
    (tmp_path / "two").mkdir()

    write_pickles(run, tmp_path / "two")

    assert gist(open_run(tmp_path / "two")) == gist(run)
    assert gist(run)[:3] == ("diverged", "op_mismatch", (2,))
