"""Judge a job by its GPUs' load and by NCCL's RAS, each on its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ncclscope.model.snapshot import GpuSample, RasComm, RasRank, Snapshot, Worker
from ncclscope.wording.device import Load
from ncclscope.wording.names import plural, ranks_text

ALONE_SECONDS = 10.0
"""Seconds without a call after which GPU load indicates a stall rather than long kernels."""
SPINNING, QUIET = 95, 1
"""Percentages: a GPU spins with at least 95 utilisation and at most 1 memory utilisation."""


@dataclass(frozen=True)
class Reading:
    """What one data source says.

    Attributes:
        says: The text.
        ranks: Ranks that it identifies as diverging.
        odd: Whether it shows a problem; None when that is unknown.
        kind: The kind of finding that it suggests.
    """

    says: str
    ranks: tuple[int, ...] = ()
    odd: bool | None = None
    kind: str = "not_joined"


def gpu_of(worker: Worker, sample: Sequence[GpuSample]) -> int | None:
    """Return NVML's number of a worker's GPU; None where it is not known.

    Use the pids that NVML reports. In a container NVML reports pids of the host: then use
    CUDA_VISIBLE_DEVICES and LOCAL_RANK, where they are plain numbers.
    """
    named = [gpu.index for gpu in sample if worker.pid in gpu.pids]
    if len(named) == 1:
        return named[0]
    local = worker.environment.get("LOCAL_RANK", "")
    listed = worker.environment.get("CUDA_VISIBLE_DEVICES", "")
    visible = listed.split(",") if listed else [str(gpu.index) for gpu in sample]
    if not local.isdecimal() or int(local[:6]) >= len(visible):
        return None
    device = visible[int(local[:6])].strip()
    indices = {gpu.index for gpu in sample}
    return int(device) if device.isdecimal() and int(device[:6]) in indices else None


def gpu_conditions(snapshot: Snapshot) -> dict[int, str]:
    """Return the state of each rank's GPU over all samples, where it is known.

    Returns:
        By rank: ``spins``, when kernels ran and touched no memory; ``idle``; else ``works``. What
        the GPU shows of other processes that use it as well is not known to be the rank's.
    """
    by_index = [{gpu.index: gpu for gpu in sample} for sample in snapshot.gpus]
    known = {worker.pid for worker in (*snapshot.workers, *snapshot.servers)}
    found = {}
    for rank, device in _devices(snapshot).items():
        samples = [s[device] for s in by_index if device is not None and device in s]
        if samples:
            idle = all(map(_idles, samples))
            is_shared = any({*one.pids} & known and {*one.pids} - known for one in samples)
            spin = not is_shared and all(map(spins, samples))
            found[rank] = "spins" if spin else "idle" if idle else "works"
    return found


def _devices(snapshot: Snapshot) -> dict[int, int | None]:
    sample = snapshot.gpus[-1] if snapshot.gpus else ()
    return {worker.rank: gpu_of(worker, sample) for worker in snapshot.workers}


def compare_gpus(snapshot: Snapshot) -> Reading | None:
    """Find ranks whose GPU is idle while most others spin, as in a collective that waits."""
    if not snapshot.gpus or not snapshot.gpus[0]:
        return None
    devices = _devices(snapshot)
    conditions = gpu_conditions(snapshot)
    if not conditions:
        return _without_ranks(snapshot.gpus[-1])
    spinning, idle, other = (
        [rank for rank, found in conditions.items() if found == condition]
        for condition in ("spins", "idle", "works")
    )
    last = {gpu.index: gpu for gpu in snapshot.gpus[-1]}

    def figures(ranks: Iterable[int]) -> str:
        return _figures([last[device] for r in ranks if (device := devices[r]) is not None])

    parts = []
    if spinning:
        parts.append(Load.SPINS.of(spinning, figures(spinning)))
    if idle:
        parts.append(Load.IDLE.of(idle, figures(idle)))
    if other:
        parts.append(Load.AT_WORK.of(other, figures(other)))
    named = bool(idle) and not other and len(spinning) > len(idle)
    return Reading("; ".join(parts), tuple(idle) if named else (), bool(spinning) or None)


def _without_ranks(sample: Sequence[GpuSample]) -> Reading:
    spinning = [gpu.index for gpu in sample if spins(gpu)]
    idle = [gpu.index for gpu in sample if _idles(gpu)]
    gpus, numbers = plural(len(sample), "GPU"), (_numbers(spinning), _numbers(idle))
    text = Load.NO_RANKS.of(len(spinning), gpus, numbers[0], len(idle), numbers[1])
    return Reading(text, odd=True if spinning and idle else None)


def spins(gpu: GpuSample) -> bool:
    """Return whether a GPU runs kernels that touch no memory."""
    return gpu.utilisation >= SPINNING and gpu.memory_utilisation <= QUIET


def _idles(gpu: GpuSample) -> bool:
    return gpu.utilisation <= QUIET and gpu.memory_utilisation <= QUIET


def _figures(gpus: Sequence[GpuSample]) -> str:
    return ", ".join(
        f"{_span([round(value) for value in values])} {unit}"
        for unit, values in (
            ("% busy", [gpu.utilisation for gpu in gpus]),
            ("% memory", [gpu.memory_utilisation for gpu in gpus]),
            ("W", [gpu.watts for gpu in gpus]),
        )
        if any(values) or unit != "W"
    )


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"


def _numbers(indices: Sequence[int]) -> str:
    return f"number {' '.join(map(str, indices))}" if indices else "none"


def compare_ras_counts(snapshot: Snapshot) -> Reading | None:
    """Return what RAS reports: ranks without an answer, errors, and counts that differ."""
    answer = snapshot.ras
    if answer is None:
        return None
    lines: list[str] = []
    gone: set[int] = set()
    apart: set[int] = set()
    for comm in answer.comms:
        named = partial(_global_rank, snapshot, comm)
        lost = [rank for rank in comm.ranks if rank.missing]
        if lost:
            gone.update(n for rank in lost if (n := named(rank)) is not None)
            said = Load.DEAD if any(r.dead for r in lost) else Load.NO_ANSWER
            lines.append(said.of(_members(lost, named), lost, comm.hash))
        bad = [rank for rank in comm.ranks if rank.async_error or rank.aborted]
        if bad:
            apart.update(n for rank in bad if (n := named(rank)) is not None)
            lines.append(Load.ERROR.of(_members(bad, named), bad, comm.hash))
        if _changes(snapshot, comm):
            continue  # calls are being launched, and RAS polls some ranks earlier than others
        for function, odd, text in _differences(comm):
            numbers = [n for rank in odd if (n := named(rank)) is not None]
            apart.update(numbers)
            lines.append(Load.LAUNCHED.of(_members(odd, named), text, function, comm.hash))
        lines += _undecided(comm, named)
    if not lines and answer.remarks:
        lines.append("; ".join(line.strip() for line in answer.remarks[:4]))
    if not lines:
        known = plural(answer.communicators, "communicator")
        return Reading(Load.NO_PROBLEM.of(answer.version or "?", known), odd=None)
    kind = "dead_rank" if gone else "missing_call"
    return Reading("; ".join(lines), tuple(sorted(gone or apart)), True, kind)


def _global_rank(snapshot: Snapshot, comm: RasComm, member: RasRank) -> int | None:
    """Return the global rank of a member; None where it is not known.

    Look it up by pid; otherwise use its number, if the communicator holds all ranks.

    Args:
        snapshot: The process snapshot.
        comm: The communicator in RAS.
        member: The member.
    """
    by_pid = {worker.pid: worker.rank for worker in snapshot.workers}
    size = max((worker.world_size for worker in snapshot.workers), default=0)
    is_whole = comm.size in (size, len(snapshot.workers)) and comm.size > 0
    return by_pid.get(member.pid, member.rank if is_whole else None)


def _changes(snapshot: Snapshot, comm: RasComm) -> bool:
    """Return whether calls of a communicator were launched while the job was sampled."""
    earlier = snapshot.ras_before.comms if snapshot.ras_before is not None else ()
    return any(_counts(one) != _counts(comm) for one in earlier if one.hash == comm.hash)


def _counts(comm: RasComm) -> dict[int, dict[str, int]]:
    return {rank.rank: dict(rank.counts) for rank in comm.ranks}


def _members(ranks: Sequence[RasRank], named: Callable[[RasRank], int | None]) -> str:
    global_ranks = [named(rank) for rank in ranks]
    known = [rank for rank in global_ranks if rank is not None]
    if len(known) < len(ranks):
        return f"member{'s' * (len(ranks) > 1)} {' '.join(str(rank.rank) for rank in ranks)}"
    return ranks_text(known)


def _undecided(comm: RasComm, named: Callable[[RasRank], int | None]) -> Iterator[str]:
    """Yield each rank's count of a function where counts differ without a majority."""
    present = [rank for rank in comm.ranks if rank.counts]
    for function in sorted({name for rank in present for name in rank.counts} - comm.usual.keys()):
        counts = Counter(rank.counts.get(function, 0) for rank in present)
        if len(counts) > 1 and 2 * max(counts.values()) <= len(present):
            each = ", ".join(
                f"{_members([r for r in present if r.counts.get(function, 0) == count], named)} "
                f"{count}"
                for count in sorted(counts)
            )
            yield Load.COUNTS_DIFFER.of(function, comm.hash, each)


def _differences(comm: RasComm) -> Iterable[tuple[str, list[RasRank], str]]:
    """Yield the functions that a minority launched more or less often than the majority."""
    present = [rank for rank in comm.ranks if rank.counts]
    for function in sorted({name for rank in present for name in rank.counts}):
        counts = [rank.counts.get(function, 0) for rank in present]
        if function in comm.usual:  # a text answer, which lists only the ranks that differ
            common = comm.usual[function]
            odd = [r for r in present if r.counts.get(function, common) != common]
        else:
            common = max(set(counts), key=counts.count)
            odd = [r for r in present if r.counts.get(function, 0) != common]
            if counts.count(common) * 2 <= len(counts):
                continue
        if not odd:
            continue
        own = " ".join(str(n) for n in sorted({r.counts.get(function, 0) for r in odd}))
        yield function, odd, Load.THE_OTHERS.of(own, common)
