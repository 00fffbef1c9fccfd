"""What ranks post, written down once, and turned into rings and into dumps."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from ncclscope.engine.verdict import Verdict
from ncclscope.tracing import scope
from tests.support.cluster import Cluster
from tests.support.dumps import Job

__all__ = ["WORLD", "Script"]

WORLD = 4
GROUPS: dict[str, tuple[int, ...]] = {
    "world": (0, 1, 2, 3),
    "tp:0": (0, 1),
    "tp:1": (2, 3),
    "ep": (0, 1, 2, 3),
}
NAMES = {"world": "0", "tp:0": "1", "tp:1": "2", "ep": "3"}
DESCRIPTIONS = {"world": "default_pg", "tp:0": "tp", "tp:1": "tp", "ep": "ep"}
OPS = {
    "all_gather": "_all_gather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_gatherv": "all_gather",
    "all_to_all": "all_to_all_single",
}
DTYPES = {"float32": "Float", "float64": "Double", "bfloat16": "BFloat16"}
BEGAN_NS = 1_795_000_000 * 10**9
STEP_NS = 10**6


@dataclass(frozen=True)
class Post:
    """One call of one rank.

    Attributes:
        rank: Global rank.
        label: Its group.
        op: In torch's spelling.
        done: Whether it completes.
        shape: Of the input.
        dtype: Element type.
        grouped: Whether it is part of a NCCL group; calls in a row are the same one.
        late: Whether the dump does not know yet that it has completed.
        more: What only some calls have: redop, root, peer, sizes, captured, site, splits.
    """

    rank: int
    label: str
    op: str
    done: bool
    shape: tuple[int, ...]
    dtype: str
    grouped: bool
    late: bool
    more: dict[str, Any]


@dataclass
class Script:
    """Calls of four ranks, in the order in which each of them posts.

    Attributes:
        posts: The calls.
        quiet: Seconds for which the ranks lived on after their last call.
        ended: Ranks that ended with it, and leave no dump.
        keep: Entries that each dump keeps; all when None.
        given_up: Ranks whose watchdog retired the last call.
        tells: Whether rings record completion of calls; NCCL reports that of barriers alone.
    """

    posts: list[Post] = field(default_factory=list)
    quiet: float = 600.0
    ended: tuple[int, ...] = ()
    keep: int | None = None
    given_up: tuple[int, ...] = ()
    tells: bool = True

    def post(
        self,
        ranks: Iterable[int],
        op: str = "all_reduce",
        *shape: int,
        label: str = "world",
        done: bool = True,
        dtype: str = "float32",
        grouped: bool = False,
        late: bool = False,
        **more: Any,
    ) -> None:
        """Post one call on each of some ranks."""
        for rank in ranks:
            call = Post(rank, label, op, done, shape or (4, 2), dtype, grouped, late, more)
            self.posts.append(call)

    def steps(self, count: int = 3) -> None:
        """What a healthy program does."""
        for step in range(count):
            self.post(GROUPS["world"], "all_reduce", 8 + step, 2)
            for label in ("tp:0", "tp:1"):
                self.post(GROUPS[label], "all_reduce", 4, 2, label=label)
            self.post(GROUPS["world"], "all_gather", 4, 2)
            self.post(GROUPS["ep"], "broadcast", 6, label="ep", root=0)

    # --- rings ---------------------------------------------------------------------------------

    def verdict_of_rings(self, directory: Path) -> Verdict:
        """Write the rings and compare them."""
        cluster = Cluster(directory, WORLD)
        grouped: set[int] = set()
        for rank in range(WORLD):
            for call in self.posts:
                if call.rank != rank:
                    continue
                if call.grouped and not grouped:
                    scope.enter_group()
                    grouped.add(rank)
                elif grouped and not call.grouped:
                    scope.leave_group()
                    grouped.clear()
                self._record(cluster, call)
            if grouped:
                scope.leave_group()
                grouped.clear()
        return cluster.verdict(
            quiet={rank: 0.0 if rank in self.ended else self.quiet for rank in range(WORLD)}
        )

    def _record(self, cluster: Cluster, call: Post) -> None:
        more = {key: value for key, value in call.more.items() if key != "splits"}
        if "splits" in call.more:
            more["sizes"], more["out_sizes"] = call.more["splits"]
        cluster.post(
            [call.rank],
            call.label,
            call.op,
            members=GROUPS[call.label],
            done=call.done and (self.tells or call.op == "barrier"),
            backend="nccl",
            shape=call.shape,
            dtype=call.dtype,
            **more,
        )

    # --- dumps ---------------------------------------------------------------------------------

    def write_dumps(self, directory: Path) -> Path:
        """Write what NCCL's recorder would, in format 2.10, or 2.11 where there are splits."""
        splits = any("splits" in call.more for call in self.posts)
        groups = {
            NAMES[label]: (DESCRIPTIONS[label], list(ranks))
            for label, ranks in GROUPS.items()
            if label != "world"
        }
        job = Job(WORLD, groups, version="2.11" if splits else "2.10")
        grouped: set[int] = set()
        for call in self.posts:
            if call.rank in grouped and not call.grouped:
                self._close(job, call)
                grouped.discard(call.rank)
            self._enter(job, call, again=call.rank in grouped)
            if call.grouped:
                grouped.add(call.rank)
        for rank in self.given_up:
            job.entries[rank][-1]["retired"] = True
        for rank, entries in enumerate(job.entries):
            for place, entry in enumerate(entries):
                entry["time_created_ns"] = BEGAN_NS + place * STEP_NS
            assert entries, f"rank {rank} posts nothing"
        job.write(directory, keep=self.keep)
        for rank in range(WORLD):
            path = directory / f"comm_lib_trace_rank_{rank}"
            written = job.entries[rank][-1]["time_created_ns"] + int(self.quiet * 1e9)
            os.utime(path, ns=(written, written))
            if rank in self.ended:
                path.unlink()
        return directory

    def _close(self, job: Job, call: Post) -> None:
        """End a NCCL group, which the recorder takes for one call, by an entry of its own."""
        options = {"group": NAMES[call.label], "state": "completed", "again": True}
        job.post([call.rank], "coalesced", ins=[], outs=[], **options)

    def _enter(self, job: Job, call: Post, *, again: bool) -> None:
        if call.more.get("captured"):  # counted, and not recorded
            counts = job.numbers[call.rank]
            key = NAMES[call.label], False
            counts[key] = counts.get(key, 0) + 1
            return
        ranks = GROUPS[call.label]
        ins, outs, name, fields = [list(call.shape)], [list(call.shape)], call.op, {}
        if call.op == "all_gather":
            outs = [[call.shape[0] * len(ranks), *call.shape[1:]]]
        elif call.op == "reduce_scatter":
            outs = [[call.shape[0] // len(ranks), *call.shape[1:]]]
        elif call.op == "all_gatherv":
            outs = [[rows, *call.shape[1:]] for rows in call.more["sizes"]]
        elif call.op == "all_to_all":
            sent, expected = call.more["splits"]
            row = prod(call.shape[1:])
            outs = [[sum(expected), *call.shape[1:]]]
            fields = {
                "input_split_sizes": [rows * row for rows in sent],
                "output_split_sizes": [rows * row for rows in expected],
            }
        elif call.op in ("send", "recv"):
            own, peer = ranks.index(call.rank), call.more["peer"]
            name = f"{call.op} {own}{'->' if call.op == 'send' else '<-'}{peer}"
        done = call.done and not call.late
        job.post(
            [call.rank],
            OPS.get(name, name),
            group=NAMES[call.label],
            state="completed" if done else "scheduled",
            ins=ins,
            outs=outs,
            splits=fields,
            again=again,
            input_dtypes=[DTYPES[call.dtype]] * len(ins),
            output_dtypes=[DTYPES[call.dtype]] * len(outs),
            frames=_frames(call.more.get("site", f"model.py:10 {call.op}")),
        )


def _frames(site: str) -> Sequence[dict[str, Any]]:
    place, _, name = site.partition(" ")
    path, _, line = place.partition(":")
    return [{"name": name, "filename": f"/job/{path}", "line": int(line)}]
