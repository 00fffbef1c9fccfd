"""What it costs a mixture-of-experts layer that ranks compare their plans before each dispatch."""

from __future__ import annotations

import time

from benchmarks.runners.timing import Rounds
from ncclscope.launch.processes import run_ranks

__all__ = ["RANKS", "STRATEGIES", "measure"]

RANKS = 4
STRATEGIES = ("always", "sentinel")
_ROWS, _HIDDEN, _EXPERTS = 16, 1024, 8


def measure(*, rounds: int, count: int) -> dict[str, tuple[Rounds, Rounds]]:
    """Measure a dispatch and a combine of four gloo ranks, by the clock on the wall.

    Args:
        rounds: How often each variant has its turn.
        count: Layers in a turn.

    Returns:
        By strategy: nanoseconds of a layer without and with the comparison.

    Raises:
        RuntimeError: The ranks did not come to their end.
    """
    outcome = run_ranks(_layers, rounds, count, ranks=RANKS, rings=None, timeout=600.0)
    if outcome.ending != "finished":
        raise RuntimeError(f"the ranks {outcome.ending}: {outcome.failures}")
    return {
        name: (Rounds(taken[False]), Rounds(taken[True]))
        for name, taken in outcome.results[0].items()
    }


def _layers(rank: int, rounds: int, count: int) -> dict[str, dict[bool, list[float]]]:
    """Run layers on one rank; return nanoseconds of one, by strategy and by comparison."""
    import torch

    from ncclscope_patches.moe_dispatch import ExpertGroups, ExpertPlacement, MoEDispatcher

    groups = ExpertGroups.create()
    placement = ExpertPlacement(_EXPERTS, RANKS)
    hidden = torch.ones(_ROWS, _HIDDEN)
    weights = torch.ones(_ROWS, 2)
    ids = torch.arange(2 * _ROWS).reshape(_ROWS, 2) % _EXPERTS
    taken: dict[str, dict[bool, list[float]]] = {}
    for name in STRATEGIES:
        variants = {
            verify: MoEDispatcher(groups, placement, strategy=name, verify=verify)
            for verify in (False, True)
        }
        taken[name] = {verify: [] for verify in variants}
        for number in range(rounds + 1):
            for verify, dispatcher in variants.items():
                sizes = dispatcher.agree(_ROWS)
                start = time.perf_counter_ns()
                for _ in range(count):
                    # The experts themselves cost the same either way, and are left out.
                    sent = dispatcher.dispatch(hidden, weights, ids, sizes)
                    dispatcher.combine(sent, sent.hidden)
                if number:  # the first round warms up
                    taken[name][verify].append((time.perf_counter_ns() - start) / count)
    return taken
