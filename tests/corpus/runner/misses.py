"""Answers about programs that are not fair yet, and why: each entry is one to remove.

An entry holds as long as the answer is scored as it says. A better answer fails, so that its
entry is removed; so does a worse one.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.corpus.runner.score import FAIR
from tests.corpus.runner.truth import ATTACH, DIAGNOSE, UNTRACED, WATCH

__all__ = ["MISSES", "Miss", "is_expected"]

_TRACED = (ATTACH, WATCH, DIAGNOSE)


@dataclass(frozen=True)
class Miss:
    """Answers about one program that are not fair.

    Attributes:
        program: Its name.
        ways: The ways of asking that give them.
        score: How they are scored.
        reason: What the verdict takes for the mistake, and why.
        always: Whether each run gives that answer; if not, a fair one passes as well.
    """

    program: str
    ways: tuple[str, ...]
    score: str
    reason: str
    always: bool = True


_LIST = (
    Miss(
        "prune_local", (UNTRACED,), "undecided",
        "rank 0 may send to a receiver that skipped the broadcast: a stack does not show which",
    ),
    Miss(
        "moe_hierarchical_flat", (UNTRACED,), "undecided",
        "five ranks are in one function and rank 4 is in another, at three lines of one operation",
    ),
    Miss(
        "healthy_scatter_rounds", (DIAGNOSE,), "false alarm",
        "killed in the first long pause, in which a rank waits for its child", always=False,
    ),
    Miss(
        "healthy_file_feeder", (ATTACH,), "false alarm",
        "rank 2 polls for a file for longer than a hang takes; its child, which writes it, sleeps",
        always=False,
    ),
    Miss(
        "healthy_model_child", (DIAGNOSE,), "false alarm",
        "killed in the first long pause of the process in which a rank's model runs",
        always=False,
    ),
    Miss(
        "healthy_eval_torchrun", (DIAGNOSE,), "false alarm",
        "killed three seconds after two of four ranks had begun to wait for the first time",
        always=False,
    ),
    Miss(
        "build_lock_stale", (ATTACH,), "wrong rank",
        "three of four ranks at one line are taken for the majority, though they poll for a lock "
        "outside the job; rank 0 in the barrier is named for an extra call",
    ),
    Miss(
        "ddp_join", (UNTRACED,), "undecided",
        "gloo aborts a rank on the other size and most of its peers end, so that the last one may "
        "have waited for any of them",
        always=False,
    ),
    Miss(
        "exit_before_done_file", _TRACED, "undecided",
        "the rank that is gone is named in an unknown status: its peers wait in no call, and a "
        "healthy rank may leave by os._exit after its work as well",
    ),
    Miss(
        "healthy_hub_upload", (ATTACH,), "false alarm",
        "a rank waits for a socket longer than a hang lasts, for the first time, and nothing of it "
        "moves",
        always=False,
    ),
    Miss(
        "healthy_lock_turns", (DIAGNOSE,), "false alarm",
        "the rank that holds the lock has used hardly any CPU time since its newest call, most of "
        "which it waited for the lock",
        always=False,
    ),
    Miss(
        "halo_shm_generation", (WATCH, DIAGNOSE), "undecided",
        "three of six ranks post nothing and three wait: from records alone these may have posted "
        "a call too many",
        always=False,
    ),
    Miss(
        "rollout_env_unflushed", (WATCH, DIAGNOSE), "undecided",
        "records do not show that rank 1 waits at a socket for rank 3",
        always=False,
    ),
    Miss(
        "simulator_not_resumed", (*_TRACED, UNTRACED), "undecided",
        "any rank may set the key for which rank 3 waits, also those that wait for rank 3",
        always=False,
    ),
    Miss(
        "loader_fifo_last_stage", (WATCH,), "undecided",
        "a rank that sends what others receive, and waits for input, may be a server",
        always=False,
    ),
    Miss(
        "exit_manifest_thread", (WATCH, DIAGNOSE), "undecided",
        "the first transfer of a pair: its receiver may have posted it too many",
        always=False,
    ),
    Miss(
        "cache_lock_kept", (UNTRACED,), "undecided",
        "a rank that waits for what it started may be a server without requests",
        always=False,
    ),
    Miss(
        "two_child_and_skip", (UNTRACED,), "wrong rank",
        "of two ranks at fault, the one that waits alone in a barrier is not named",
        always=False,
    ),
)  # fmt: skip

MISSES = {(miss.program, way): miss for miss in _LIST for way in miss.ways}


def is_expected(program: str, way: str, score: str) -> bool:
    """Return whether an answer is fair, or the one that is listed here."""
    miss = MISSES.get((program, way))
    if miss and score == miss.score:
        return True
    return score in FAIR and not (miss and miss.always)
