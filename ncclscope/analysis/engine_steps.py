"""Which step of the engine each rank is in, and where the engines themselves stand."""

from __future__ import annotations

from collections.abc import Iterator

from ncclscope.analysis.wording import call_text, plural, ranks_text
from ncclscope.model import Finding, Run, State, Step

__all__ = ["describe_steps"]

_SHOWN = 6
"""Different steps that are told one by one."""


def describe_steps(run: Run, cause: Finding) -> Iterator[str]:
    """Yields facts for the evidence of a cause; none where no steps were recorded.

    Args:
        run: What was examined.
        cause: The cause. Where its ranks have no steps, the others are not looked at: without
            one that takes reading all there is.
    """
    first = min((*cause.diverging_ranks, *cause.candidate_ranks), default=-1)
    singled = run.by_rank.get(first, run.ranks[0] if run.ranks else None)
    if singled is None or singled.last_step() is None:
        return
    ranks: dict[str, list[int]] = {}
    for rank in run.ranks:
        ranks.setdefault(_text(rank.last_step()), []).append(rank.rank)
    shown = sorted(ranks.items(), key=lambda item: item[1])
    if len(shown) > _SHOWN:  # replicas that share nothing count their steps by themselves
        shown = [item for item in shown if singled.rank in item[1]]
    yield "; ".join(f"{ranks_text(members)} in {text}" for text, members in shown)
    yield from _engines(run)


def _text(step: Step | None) -> str:
    if step is None:
        return "no step"
    if step.dummy:
        return f"step {step.number} (dummy)"
    tokens = "" if step.tokens is None else f" ({plural(step.tokens, 'token')})"
    return f"step {step.number}{tokens}"


def _engines(run: Run) -> Iterator[str]:
    """Yields where engines wait for each other, as they do between the steps of a deployment."""
    for process in run.others:
        engine = process.labels.get("engine")
        call = process.last_call()
        if engine is None or call is None or call.state is State.COMPLETED:
            continue
        comm = process.logs[call.comm].communicator
        yield (
            f"engine {engine} (pid {process.pid}) waits in call {call.seq} on {comm.label}, "
            f"{call_text(call)}"
        )
