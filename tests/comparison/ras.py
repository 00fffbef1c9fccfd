"""What NCCL's RAS would say, by its documentation: nothing here was measured.

RAS counts, for each communicator and rank, the collectives that were launched: five functions,
each apart since 2.26. It compares the counts, and names the ranks of a group that is an outlier,
by default at most a quarter of all. It reports processes that do not answer. A difference of
counts is normal in a job that is busy, and means something when it stays.
"""

from __future__ import annotations

__all__ = ["BY_DOCUMENTATION", "URL"]

URL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html"

COUNTS = "MISMATCH: counts differ, rank {} listed, no call"
SAME = "nothing: counts agree"

BY_DOCUMENTATION = {
    "op_mismatch": COUNTS.format(3),
    "size_mismatch": SAME,
    "dtype_mismatch": SAME,
    "redop_mismatch": SAME,
    "root_mismatch": SAME,
    "split_mismatch": SAME,
    "all_to_all_splits": "nothing: all_to_all is not counted",
    "missing_call": COUNTS.format(2),
    "extra_call": COUNTS.format(1),
    "equal_calls": COUNTS.format(2),
    "comm_swap": COUNTS.format(3) + ", on both communicators",
    "order_cycle": SAME,
    "not_joined": COUNTS.format(1),
    "dead_rank": "INCOMPLETE, then DEAD: rank 2 named, no call",
    "absent_and_wrong": "MISMATCH: counts differ, no call",
    "waits_elsewhere": "MISMATCH on both communicators, no order between them",
    "p2p_mismatch": "MISMATCH: rank 0 a call behind; sends are not counted",
    "capture_mismatch": COUNTS.format(3),
    "stalled": "nothing: counts are of launches, and agree",
    "group_order": SAME,
    "healthy": "OK",
    "healthy_wrapped": "OK",
    "healthy_all_to_all": "OK",
    "healthy_gatherv": "OK",
    "healthy_transfers": "OK",
    "healthy_snapshot": "MISMATCH, normal in a busy job: ask again",
    "healthy_seen_late": "OK",
}
