"""An engine that runs its only worker itself, as on a host with one GPU: it posts no collective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ncclscope import diagnose
from ncclscope.model import Activity, Run
from tests.support.activities import NOW, Acts, with_activities
from tests.support.cluster import Cluster

ClusterOf = Callable[[int], Cluster]

AT_REST: Acts = {"input": (60.0, None, None, 0), "step": (59.0, 59.9, "sample_tokens", 0)}

FOUND_DEAD: Acts = {"raised": (NOW, NOW, "EngineDeadError at client.py:1 get", 0)}
"""What a server notes of its engine."""


def _solo(cluster_of: ClusterOf, acts: Acts, **changes: Any) -> Run:
    """Return a run of one engine that recorded activities, and no call."""
    run = cluster_of(1).run()
    engine = with_activities(replace(run.ranks[0], labels={"engine": "0"}), acts, **changes)
    return replace(run, ranks=(engine,))


def _answer(run: Run) -> tuple[str, str | None, tuple[int, ...]]:
    found = diagnose(run)
    if found.cause is None:
        return found.status, None, ()
    return found.status, found.cause.kind, found.cause.diverging_ranks


@pytest.mark.parametrize(
    ("acts", "answer"),
    [
        (AT_REST, ("ok", None, ())),
        (
            {"input": (98.0, 99.0, None, 0), "step": (99.0, None, "execute_model", 0)},
            ("ok", None, ()),
        ),
        ({"step": (99.0, None, "execute_model", 0)}, ("ok", None, ())),
        ({}, ("unknown", None, ())),
        (
            {"input": (39.0, 40.0, None, 0), "step": (40.0, None, "execute_model", 0)},
            ("hung", "rpc_stalled", (0,)),
        ),
        (
            {"input": (39.0, 40.0, None, 0), "step": (38.0, 39.0, "sample_tokens", 0)},
            ("hung", "rpc_stalled", (0,)),
        ),
        (
            {"input": (30.0, None, None, 0), "asked": (40.0, None, "add_lora", 0)},
            ("hung", "rpc_stalled", (0,)),
        ),
        (
            {"input": (30.0, None, None, 0), "asked": (95.0, None, "add_lora", 0)},
            ("unknown", None, ()),
        ),
        (
            {
                "input": (39.0, 40.0, None, 0),
                "step": (40.0, None, "execute_model", 0),
                "cpu": (40.0, None, None, 0),
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
    run = _solo(
        cluster_of, {"input": (39.0, 40.0, None, 0), "step": (40.0, None, "execute_model", 0)}
    )
    (engine,) = run.ranks
    base = engine.started_ns or 0
    cpu = Activity("cpu", None, 59_000_000, 1, base + int(40e9), None)
    busy = replace(engine, activities={**engine.activities, "cpu": cpu})

    assert _answer(replace(run, ranks=(busy,))) == ("unknown", "late", (0,))


def test_an_engine_whose_server_survived_it_was_killed(cluster_of: ClusterOf) -> None:
    run = _solo(cluster_of, AT_REST, alive=False)
    server = replace(run.ranks[0], rank=-1, pid=3000, labels={}, details={"role": "frontend"})
    found_dead = with_activities(
        server, {"raised": (NOW, NOW, "EngineDeadError at client.py:1 get", 0)}
    )

    assert _answer(replace(run, others=(found_dead,))) == ("hung", "dead_rank", (0,))
    assert _answer(replace(run, others=(server,)))[:2] == ("unknown", None)


def test_an_engine_that_raised_ended_its_service(cluster_of: ClusterOf) -> None:
    acts = {**AT_REST, "raised": (NOW - 1, NOW - 1, "RuntimeError at runner.py:7 step", 0)}
    run = _solo(cluster_of, acts, alive=False)
    server = replace(run.ranks[0], rank=-1, pid=3000, labels={}, details={"role": "frontend"})
    found_dead = with_activities(
        server, {"raised": (NOW, NOW, "EngineDeadError at client.py:1 get", 0)}
    )
    verdict = diagnose(replace(run, others=(found_dead,)))

    assert (verdict.status, verdict.diverging_ranks) == ("hung", {0})
    assert "raised RuntimeError at runner.py:7" in verdict.summary


def test_one_that_others_wait_for_in_a_call_is_the_cause_once(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(2)
    cluster.history()
    cluster.post([0], "tp:0", done=False)
    run = cluster.run()
    held = with_activities(
        replace(run.ranks[1], labels={"engine": "1"}),
        {"input": (39.0, 40.0, None, 0), "step": (40.0, None, "execute_model", 0)},
    )
    verdict = diagnose(replace(run, ranks=(run.ranks[0], held)))

    assert [one.kind for one in verdict.causes] == ["not_joined"]


def test_a_request_waits_in_an_engine_that_runs_steps(cluster_of: ClusterOf) -> None:
    """No part of its answer may come as long as steps compute a long prompt."""
    acts: Acts = {"input": (98.0, 99.0, None, 0), "step": (99.0, None, "execute_model", 7)}
    run = _solo(cluster_of, acts)
    server = replace(run.ranks[0], rank=-1, pid=3000, labels={}, details={"role": "frontend"})
    waiting = with_activities(server, {"requests": (60.0, None, None, 1)})

    assert _answer(replace(run, others=(waiting,)))[0] == "ok"


def test_a_server_without_an_engine_has_not_exited(cluster_of: ClusterOf) -> None:
    run = _solo(cluster_of, {})
    server = replace(run.ranks[0], rank=-1, pid=3000, labels={}, details={"role": "frontend"})

    assert _answer(replace(run, ranks=(), others=(server,)))[0] == "unknown"
