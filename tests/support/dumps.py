"""Flight Recorder dumps without processes, of as many ranks as wanted."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.runners.dumps import pickled
from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.readers import open_run

__all__ = ["Job", "history"]

Entry = dict[str, Any]


class Job:
    """Ranks that write down what they would have recorded.

    Args:
        size: World size.
        groups: Further groups: description and ranks, by name.
        backend: Before the colon of each call's name.
        version: Of the format.
    """

    def __init__(
        self,
        size: int,
        groups: dict[str, tuple[str, list[int]]] | None = None,
        backend: str = "nccl",
        version: str = "2.10",
    ) -> None:
        self.version = version
        self.groups = {"0": ("default_pg", list(range(size))), **(groups or {})}
        self.backend = backend
        self.entries: list[list[Entry]] = [[] for _ in range(size)]
        self.numbers: list[dict[tuple[str, bool], int]] = [{} for _ in range(size)]

    def post(
        self,
        ranks: Iterable[int],
        op: str = "all_reduce",
        *,
        group: str = "0",
        state: str = "completed",
        ins: list[list[int]] | None = None,
        outs: list[list[int]] | None = None,
        again: bool = False,
        splits: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Post one call on each of some ranks.

        Args:
            ranks: Who posts it.
            op: As in the entry's name, without the backend.
            group: Name of the group.
            state: How far it has come.
            ins: Shapes of the inputs.
            outs: Shapes of the outputs; those of the inputs when absent.
            again: Whether it is one more of a coalesced group.
            splits: Further fields beside the shapes.
            **more: Further fields, or others.
        """
        for rank in ranks:
            p2p = op.startswith(("send", "recv"))
            counts = self.numbers[rank]
            counts[group, p2p] = counts.get((group, p2p), 0) + (not again)
            shape = [[4, 2]] if ins is None else ins
            self.entries[rank].append(
                {
                    "record_id": len(self.entries[rank]),
                    "pg_id": list(self.groups).index(group),
                    "process_group": (group, self.groups[group][0]),
                    "collective_seq_id": counts.get((group, False), 0),
                    "p2p_seq_id": counts.get((group, True), 0),
                    "op_id": sum(counts.values()),
                    "profiling_name": f"{self.backend}:{op}" if self.backend else op,
                    "time_created_ns": 10**18 + len(self.entries[rank]),
                    "input_sizes": shape,
                    "input_dtypes": ["BFloat16"],
                    "output_sizes": shape if outs is None else outs,
                    "output_dtypes": ["BFloat16"],
                    **(splits or {}),
                    "state": state,
                    "time_discovered_started_ns": None,
                    "time_discovered_completed_ns": None,
                    "retired": state == "completed",
                    "timeout_ms": 600000,
                    "is_p2p": p2p,
                    **more,
                }
            )

    def value(self, rank: int, *, keep: int | None = None) -> dict[str, Any]:
        """Return a rank's dump; the last entries alone where the recorder is small."""
        entries = self.entries[rank]
        return {
            "version": self.version,
            "pg_config": {
                name: {"name": name, "desc": desc, "ranks": str(ranks)}
                for name, (desc, ranks) in self.groups.items()
                if rank in ranks
            },
            "comm_lib_version": "2.27.3",
            "pg_status": {},
            "entries": entries if keep is None else entries[-keep:],
        }

    def write(self, directory: Path, **options: Any) -> Path:
        """Write all dumps as torch does."""
        directory.mkdir(exist_ok=True)
        for rank in range(len(self.entries)):
            data = pickled(self.value(rank, **options))
            (directory / f"comm_lib_trace_rank_{rank}").write_bytes(data)
        return directory

    def verdict(self, directory: Path, **options: Any) -> Verdict:
        """Write and compare them."""
        return diagnose(open_run(self.write(directory, **options)))


def history(job: Job, count: int = 4) -> None:
    """Post calls that all ranks agree in, each with a size of its own."""
    for number in range(count):
        job.post(list(range(len(job.entries))), ins=[[4 + number, 2]])
