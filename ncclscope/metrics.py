"""Format a job's metrics as Prometheus text.

Labels are those of NCCL Inspector if it has one for the same thing (``node``, ``gpu``,
``comm_name``, ``n_nodes``, ``nranks``, ``slurm_job_id``), so that one dashboard can show both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

_STATUSES = ("ok", "diverged", "hung", "incomplete", "unknown")

METRICS = {
    "ncclscope_status": ("gauge", "1 for the current status of the job."),
    "ncclscope_verdict": ("gauge", "1 while ranks have diverged or hang, with the kind."),
    "ncclscope_ranks": ("gauge", "Processes whose rings are read."),
    "ncclscope_ranks_expected": ("gauge", "Ranks that the job should have."),
    "ncclscope_coverage_complete": ("gauge", "1 if the records have no known gap."),
    "ncclscope_calls_total": ("counter", "Collectives enqueued on a communicator."),
    "ncclscope_gpu_finished_calls_total": ("counter", "Collectives that the GPU has finished."),
    "ncclscope_gpu_entered_calls_total": ("counter", "Collectives that the GPU has entered."),
    "ncclscope_p2p_calls_total": ("counter", "Sends and receives enqueued on a communicator."),
    "ncclscope_lag_calls": ("gauge", "Collectives by which the leading member is ahead."),
    "ncclscope_in_call": ("gauge", "1 while the newest call on a communicator is not completed."),
    "ncclscope_idle_seconds": ("gauge", "Seconds since anything changed in a rank's ring."),
    "ncclscope_troubles_total": ("counter", "Divergences and hangs since the watch began."),
    "ncclscope_looked_seconds": ("gauge", "Time of the last poll, seconds since 1970."),
}
"""Type and description of each metric."""

Labels = Mapping[str, str]
Sample = tuple[str, Labels, float]


def verdict_samples(status: str, cause: Any, job: Labels) -> Iterator[Sample]:
    """Yield the samples of a status and of the finding behind it, if there is one.

    Args:
        status: As in the JSON verdict.
        cause: The finding; None without one.
        job: Labels of the job.
    """
    for known in _STATUSES:
        yield "ncclscope_status", {"status": known, **job}, float(known == status)
    if cause is not None:
        about = {
            "kind": cause.kind,
            "comm_name": cause.comm.label if cause.comm is not None else "",
            "ranks": " ".join(map(str, cause.diverging_ranks)),
            "confidence": cause.confidence,
        }
        yield "ncclscope_verdict", {**about, **job}, 1.0


def process_labels(process: Any) -> Labels:
    """Return the labels of a process: of a rank, or of the cursor of its ring."""
    return {
        "node": process.host,
        "gpu": "" if process.gpu is None else str(process.gpu),
        "rank": str(process.rank),
        "pid": str(process.pid),
    }


def comm_labels(comm: Any, hosts: Collection[str]) -> Labels:
    """Return the labels of a communicator whose members run on these hosts."""
    return {
        "comm_name": comm.label,
        "comm": comm.key,
        "n_nodes": str(len(hosts)),
        "nranks": str(len(comm.ranks)),
    }


def samples_text(samples: Iterable[Sample]) -> str:
    """Return samples as Prometheus text, metrics in a fixed order."""
    found: dict[str, list[Sample]] = {name: [] for name in METRICS}
    for sample in samples:
        found[sample[0]].append(sample)
    lines = []
    for name, own in found.items():
        if own:
            kind, help = METRICS[name]
            lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{_labels_text(labels)} {value:.15g}" for _, labels, value in own]
    return "\n".join(lines) + "\n"


def _labels_text(labels: Labels) -> str:
    if not labels:
        return ""
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return "{" + inside + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
