"""An engine that runs its only worker itself, as on a host with one GPU: it posts no collective."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from ncclscope import diagnose
from ncclscope.model import Activity, Rank, Run
from tests.support.cluster import Cluster

ClusterOf = Callable[[int], Cluster]
Acts = Mapping[str, tuple[float, float | None, str | None]]
"""Since and until in seconds, and detail, by name."""

NOW = 100.0
AT_REST: Acts = {"input": (60.0, None, None), "step": (59.0, 59.9, "sample_tokens")}


def _solo(cluster_of: ClusterOf, acts: Acts, **changes: Any) -> Run:
    """Return a run of one engine that recorded activities, and no call."""
    run = cluster_of(1).run()
    engine = _with(replace(run.ranks[0], labels={"engine": "0"}), acts, **changes)
    return replace(run, ranks=(engine,))


def _with(process: Rank, acts: Acts, **changes: Any) -> Rank:
    base = process.started_ns or 0
    activities = {
        name: Activity(
            name,
            detail,
            number=0,
            count=1,
            since_ns=base + int(since * 1e9),
            until_ns=None if until is None else base + int(until * 1e9),
        )
        for name, (since, until, detail) in acts.items()
    }
    known = {"alive": True, "last_seen_ns": base + int(NOW * 1e9), **changes}
    return replace(process, activities=activities, **known)


def _answer(run: Run) -> tuple[str, str | None, tuple[int, ...]]:
    found = diagnose(run)
    if found.cause is None:
        return found.status, None, ()
    return found.status, found.cause.kind, found.cause.diverging_ranks


@pytest.mark.parametrize(
    ("acts", "answer"),
    [
        (AT_REST, ("ok", None, ())),
        ({"input": (98.0, 99.0, None), "step": (99.0, None, "execute_model")}, ("ok", None, ())),
        ({"step": (99.0, None, "execute_model")}, ("ok", None, ())),
        ({}, ("unknown", None, ())),
        (
            {"input": (39.0, 40.0, None), "step": (40.0, None, "execute_model")},
            ("hung", "rpc_stalled", (0,)),
        ),
        (
            {"input": (39.0, 40.0, None), "step": (38.0, 39.0, "sample_tokens")},
            ("hung", "rpc_stalled", (0,)),
        ),
        (
            {"input": (30.0, None, None), "asked": (40.0, None, "add_lora")},
            ("hung", "rpc_stalled", (0,)),
        ),
        (
            {"input": (30.0, None, None), "asked": (95.0, None, "add_lora")},
            ("unknown", None, ()),
        ),
        (
            {
                "input": (39.0, 40.0, None),
                "step": (40.0, None, "execute_model"),
                "cpu": (40.0, None, None),
            },
            ("hung", "rpc_stalled", (0,)),
        ),
    ],
    ids=[
        "rests",
        "steps",
        "steps in a program",
        "starts",
        "step",
        "between",
        "asked",
        "asked now",
        "idle step",
    ],
)
def test_an_engine_without_collectives_is_judged_by_what_it_does(
    cluster_of: ClusterOf, acts: Acts, answer: tuple[str, str | None, tuple[int, ...]]
) -> None:
    assert _answer(_solo(cluster_of, acts)) == answer


def test_an_engine_that_computes_for_long_is_late(cluster_of: ClusterOf) -> None:
    run = _solo(cluster_of, {"input": (39.0, 40.0, None), "step": (40.0, None, "execute_model")})
    (engine,) = run.ranks
    base = engine.started_ns or 0
    cpu = Activity("cpu", None, 59_000_000, 1, base + int(40e9), None)
    busy = replace(engine, activities={**engine.activities, "cpu": cpu})

    assert _answer(replace(run, ranks=(busy,))) == ("unknown", "late", (0,))


def test_an_engine_whose_server_survived_it_was_killed(cluster_of: ClusterOf) -> None:
    run = _solo(cluster_of, AT_REST, alive=False)
    server = replace(run.ranks[0], rank=-1, pid=3000, labels={}, details={"role": "frontend"})
    found_dead = _with(server, {"raised": (NOW, NOW, "EngineDeadError at client.py:1 get")})

    assert _answer(replace(run, others=(found_dead,))) == ("hung", "dead_rank", (0,))
    assert _answer(replace(run, others=(server,)))[:2] == ("unknown", None)


def test_an_engine_that_raised_ended_its_service(cluster_of: ClusterOf) -> None:
    acts = {**AT_REST, "raised": (NOW - 1, NOW - 1, "RuntimeError at runner.py:7 step")}
    run = _solo(cluster_of, acts, alive=False)
    server = replace(run.ranks[0], rank=-1, pid=3000, labels={}, details={"role": "frontend"})
    found_dead = _with(server, {"raised": (NOW, NOW, "EngineDeadError at client.py:1 get")})
    verdict = diagnose(replace(run, others=(found_dead,)))

    assert (verdict.status, verdict.diverging_ranks) == ("hung", {0})
    assert "raised RuntimeError at runner.py:7" in verdict.summary


def test_one_that_others_wait_for_in_a_call_is_the_cause_once(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(2)
    cluster.history()
    cluster.post([0], "tp:0", done=False)
    run = cluster.run()
    held = _with(
        replace(run.ranks[1], labels={"engine": "1"}),
        {"input": (39.0, 40.0, None), "step": (40.0, None, "execute_model")},
    )
    verdict = diagnose(replace(run, ranks=(run.ranks[0], held)))

    assert [one.kind for one in verdict.causes] == ["not_joined"]


def test_a_server_without_an_engine_has_not_exited(cluster_of: ClusterOf) -> None:
    run = _solo(cluster_of, {})
    server = replace(run.ranks[0], rank=-1, pid=3000, labels={}, details={"role": "frontend"})

    assert _answer(replace(run, ranks=(), others=(server,)))[0] == "unknown"
