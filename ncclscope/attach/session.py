"""Sample a job: find its workers, then read their stacks, rings, GPUs and RAS.

All processes are sampled at the same time, several times within a few seconds. A difference
between two ranks means little if they were read at different times.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ncclscope.attach import environment as machine
from ncclscope.attach import flight_pipe, native
from ncclscope.attach.host.kernel_log import KMSG, read_kernel_log
from ncclscope.attach.host.locks import holders_of
from ncclscope.attach.host.queues import with_queues
from ncclscope.attach.host.sockets import (
    accepted,
    clients,
    lost_peers,
    other_ends,
    socket_source,
)
from ncclscope.attach.kinship import engines_of, served_port, servers_of
from ncclscope.attach.processes import (
    Placed,
    children,
    describe,
    find_workers,
    give_ranks,
    left_out,
)
from ncclscope.attach.ras import ask_ras, parse_address
from ncclscope.attach.replaced import replaced_programs
from ncclscope.attach.sampling import ProcessReader, Sample, first_error, take_samples
from ncclscope.attach.stacks import with_source
from ncclscope.attach.titles import parse_title
from ncclscope.engine.processes.evidence import absent_ranks
from ncclscope.engine.processes.judgement import HANG_SECONDS
from ncclscope.engine.processes.motion import read_places
from ncclscope.engine.processes.stack_verdict import judge_stacks
from ncclscope.engine.services.requests import stepping
from ncclscope.engine.verdict import diagnose
from ncclscope.errors import InputError, NcclscopeError
from ncclscope.model import Run
from ncclscope.model.snapshot import RasAnswer, Snapshot, Source, Worker
from ncclscope.readers import assemble, open_run, ring_files, untraced_files
from ncclscope.readers.bundle import with_snapshot
from ncclscope.readers.ring.ranks import read_ring
from ncclscope.untrusted import printable
from ncclscope.wording.names import plural

GAP_SECONDS = 2.0
_OF_GPUS = ("gpu", "ras", "flight_recorder")
"""Sources that say nothing of a job without GPUs."""


@dataclass(frozen=True)
class Options:
    """How to sample a job.

    Attributes:
        pids: Pids of the workers; if empty, search for them.
        gap: Seconds between the first and the last sample.
        patience: Keep sampling for up to this many seconds while the waiting ranks may wait
            for one that is merely late; 0 stops after the gap.
        native: Read C frames, too, which stops each process for some tenths of a second.
        flight_recorder: Request Flight Recorder dumps from the job.
        kernel_log: The kernel's log, or a file with the output of ``dmesg``.
    """

    pids: tuple[int, ...] = ()
    gap: float = GAP_SECONDS
    patience: float = 0.0
    native: bool = False
    flight_recorder: bool = False
    kernel_log: Path = KMSG

    @classmethod
    def of(cls, gap: float | None, **others: Any) -> Options:
        """Return options that sample for `gap` seconds, or until the verdict is clear if None.

        Args:
            gap: Seconds between the first and the last sample.
            **others: The other options.
        """
        if gap is not None:
            return cls(gap=gap, patience=0.0, **others)
        return cls(patience=HANG_SECONDS, **others)


@dataclass(frozen=True)
class JobSample:
    """A sampled job.

    Attributes:
        run: The records, if there are any, with the process snapshot.
        rings: Rings that the records were read from.
        dumps: Flight Recorder dumps that the job wrote on request.
    """

    run: Run
    rings: tuple[Path, ...] = ()
    dumps: tuple[Path, ...] = ()

    @property
    def untraced(self) -> tuple[Path, ...]:
        """Files of the job's processes without a record."""
        return tuple(Path(one.source) for one in self.run.untraced)

    @property
    def snapshot(self) -> Snapshot:
        """The process snapshot."""
        assert self.run.snapshot is not None
        return self.run.snapshot


def sample_job(options: Options, say: Callable[[str], None] = lambda text: None) -> JobSample:
    """Sample a job for a few seconds.

    Args:
        options: How to sample.
        say: Called with progress messages.

    Raises:
        UsageError: No worker was found, or workers of several jobs.
        InputError: No worker could be read.
    """
    candidates = find_workers(options.pids)
    feeding = {one.pid: one for one in engines_of(candidates, describe)}
    unranked = left_out([pid for pid in options.pids if pid not in feeding], candidates)
    files = [Path(ring) for candidate in candidates for ring in candidate.rings]
    every, rings = _read_rings(files)
    recorded = None if every is None else _sampled(every)
    if every is not None and every.linked:
        # Of several jobs, the one that waits or hangs is sampled; the others are read.
        assert recorded is not None
        own = {process.pid for process in (*recorded.ranks, *recorded.others)}
        candidates = [one for one in candidates if one.pid in own] or candidates
    elif recorded is not None:
        candidates += replaced_programs(recorded, candidates)
    by_pid = {rank.pid: rank.rank for rank in recorded.ranks} if recorded else {}
    placed = give_ranks(candidates, by_pid)
    parents = {one.parent for one in candidates}
    engines = [Placed(one, -1, "title") for pid, one in feeding.items() if pid in parents]
    serving = servers_of([*feeding.values(), *candidates], describe, children)
    known = {one.pid for one in candidates}
    servers = [Placed(one, -1, "title") for one in serving if one.pid not in known]
    pids = [one.candidate.pid for one in placed]
    patience = patience_for(recorded, options)
    say(f"{plural(len(pids), 'process')}, sampled for {options.gap:g} s")
    reader = ProcessReader([*pids, *(one.candidate.pid for one in (*engines, *servers))])
    address = parse_address(_variable(placed, "NCCL_RAS_ADDR"))
    with ThreadPoolExecutor(max_workers=1) as pool:
        before = pool.submit(ask_ras, address)
        is_open = _longer((placed, engines, servers), say, patience)
        samples, gap = take_samples(reader, options.gap, patience, is_open)
        after = pool.submit(ask_ras, address)
        answer, ras_source = _ras_answer(after, address, pids)
        answer_before = _ras_answer(before, address, pids)[0]
    reader.close()
    read = {pid: with_source(pid, stacks) for pid, stacks in samples[-1].stacks.items()}
    samples[-1] = replace(samples[-1], stacks=read)
    last, native_source = _native(options, samples[-1], pids)
    samples[-1] = last
    sources = [*native_source, *_flight_recorder(options, placed)]
    if every is not None:  # include what was recorded while sampling
        every, rings = _read_rings(files)
        recorded = None if every is None else _sampled(every, pids)
    kernel, kernel_source = read_kernel_log(options.kernel_log)
    ranks = {one.candidate.pid: one.rank for one in placed}
    meeting, locks, ends = accepted(ranks), holders_of(ranks), other_ends(ranks)
    workers = tuple(
        replace(
            _worker(one, samples),
            lost_peers=lost_peers(one.candidate.pid),
            accepted=meeting.get(one.candidate.pid, ()),
            locked_by=locks.get(one.rank, ()),
            other_end=ends.get(one.candidate.pid, -1),
        )
        for one in placed
    )
    dumps = tuple(Path(source.state) for source in sources if source.name == "dump")
    snapshot = Snapshot(
        host=socket.gethostname(),
        time_ns=time.time_ns(),
        gap=round(gap, 2),
        workers=workers,
        engines=tuple(_worker(one, samples) for one in engines),
        servers=tuple(
            replace(
                _worker(one, samples),
                clients=clients(one.candidate.pid, served_port(one.candidate.words)),
            )
            for one in servers
        ),
        sources=_relevant(
            placed,
            _ring_source(workers, rings),
            reader.stack_source(workers),
            Source("proc", True, f"state and CPU time of {plural(len(workers), 'process')}"),
            reader.gpu_source(),
            ras_source,
            kernel_source,
            socket_source(workers),
            *(source for source in sources if source.name != "dump"),
        ),
        ras=answer,
        ras_before=answer_before,
        gpus=(samples[0].gpus, last.gpus) if samples[0].gpus else (),
        kernel=kernel,
        queues=with_queues(recorded).queues if recorded is not None else (),
        notes=(*_notes(placed), *unranked),
        versions=machine.versions(),
    )
    run = with_snapshot(recorded or assemble([]), snapshot)
    if not run.ranks:
        raise InputError(
            f"nothing could be read of {plural(len(pids), 'worker')}: {first_error(workers)}",
            machine.permission_help(pids),
        )
    return JobSample(run, tuple(rings), dumps)


def patience_for(recorded: Run | None, options: Options) -> float:
    """Return for how many seconds to keep sampling, given what the rings show.

    What they show to hang is not merely late. Where they name no rank, stacks that do not move may.
    """
    cause = None if recorded is None else diagnose(recorded).cause
    known = cause is not None and (cause.diverging_ranks or cause.transfer is not None)
    return 0.0 if known else options.patience


def _longer(
    groups: Sequence[Sequence[Placed]], say: Callable[[str], None], patience: float
) -> Callable[[Sequence[Sample], float], bool]:
    """Return a function that says whether more samples could decide; it reports that once.

    Args:
        groups: The workers, the engines and the servers.
        say: Called with progress messages.
        patience: Seconds for which samples are taken at most.
    """
    reported = False

    def is_open(samples: Sequence[Sample], span: float) -> bool:
        nonlocal reported
        seen = (tuple(_worker(one, samples) for one in group) for group in groups)
        workers, engines, servers = seen
        if not may_hang(
            Snapshot(
                host=socket.gethostname(),
                time_ns=time.time_ns(),
                gap=span,
                workers=workers,
                engines=engines,
                servers=servers,
            )
        ):
            return False
        if not reported:
            say(f"waiting ranks did not move for {span:.0f} s; sampling for up to {patience:g} s")
            reported = True
        return True

    return is_open


def may_hang(snapshot: Snapshot) -> bool:
    """Return whether stacks show a hang, or would show one if they had been sampled for longer."""
    found = judge_stacks(read_places(snapshot), snapshot.gap, absent_ranks(snapshot))
    if any(one.is_open for one in found):
        return True
    run = with_snapshot(assemble([]), snapshot)
    if not snapshot.engines or diagnose(run).cause is not None:
        return False
    return any(stepping(run)) or diagnose(run, live_stall_seconds=snapshot.gap).cause is not None


def _read_rings(files: Sequence[Path]) -> tuple[Run | None, list[Path]]:
    """Read the mapped rings of a job, and those of ended processes of the same run."""
    if not files:
        return None, []
    try:
        # Traces and dumps that lie beside the rings are no evidence of what happens now.
        directories = sorted({file.parent for file in files})
        rings = [path for one in directories for path in sorted(ring_files(one))]
        run = open_run(*rings, *(path for one in directories for path in untraced_files(one)))
        run = replace(run, sources=tuple(printable(str(one)) for one in directories))
        sources = {Path(process.source) for process in run.processes}
        if not set(files) <= sources:
            run = assemble([read_ring(file) for file in files])
    except (NcclscopeError, OSError):
        return None, []
    return run, sorted({Path(process.source) for process in run.processes})


def _sampled(run: Run, pids: Collection[int] = ()) -> Run:
    """Return the one job that is sampled, of those that recorded in one directory.

    Jobs that exchange transfers are judged together.

    Args:
        run: The newest job, with the others.
        pids: The processes that were sampled; without them, it is the job that the verdict is on.
    """
    tied = tuple(one for one in run.linked if not one.beside and one.started_by is None)
    if len(tied) == len(run.linked):
        return run
    apart = (replace(one, sources=run.sources) for one in run.linked if one not in tied)
    jobs = replace(run, linked=tied), *apart
    if pids:
        return max(jobs, key=lambda job: sum(rank.pid in pids for rank in job.ranks))
    found = {(rank.host, rank.pid) for rank in diagnose(run).run.ranks}
    return max(jobs, key=lambda job: sum((rank.host, rank.pid) in found for rank in job.ranks))


def _variable(placed: Sequence[Placed], name: str) -> str | None:
    return next(
        (value for one in placed if (value := one.candidate.environment.get(name))),
        None,
    )


def _ras_answer(
    future: Future[RasAnswer | str], address: tuple[str, int], pids: Sequence[int]
) -> tuple[RasAnswer | None, Source]:
    answer = future.result()
    if isinstance(answer, str):
        return None, Source(
            "ras",
            False,
            answer,
            "NCCL 2.24 or later answers there unless NCCL_RAS_ENABLE=0 is set; NCCL_RAS_ADDR "
            "sets another address",
        )
    named = {rank.pid for comm in answer.comms for rank in comm.ranks if rank.pid}
    if answer.is_json and named and not named & set(pids):
        return None, Source(
            "ras",
            False,
            f"{address[0]}:{address[1]} answers for another job",
            "start this job with its own NCCL_RAS_ADDR",
        )
    return answer, Source("ras", True, f"NCCL {answer.version or '?'} answered")


def _native(options: Options, last: Sample, pids: Sequence[int]) -> tuple[Sample, list[Source]]:
    """Add C frames to the last sample, if requested; a verdict does not depend on them."""
    if not options.native:
        return last, []
    if not native.is_installed():
        missing = Source("native", False, "pystack is not installed", "pip install pystack")
        return last, [missing]
    stacks, error = dict(last.stacks), ""
    read = 0
    for pid in pids:
        found = native.read_native(pid)
        if isinstance(found, str):
            error = found
        else:
            stacks[pid] = native.merge_native(stacks[pid], found)
            read += 1
    state = f"C frames of {read} of {len(pids)} ranks{f'; {error}' if error else ''}"
    return replace(last, stacks=stacks), [Source("native", read > 0, state)]


def _flight_recorder(options: Options, placed: Sequence[Placed]) -> list[Source]:
    """Request a dump from each rank, if asked to; each file becomes a source ``dump``."""
    ready = [one for one in placed if flight_pipe.pipe_of(one.candidate.environment, one.rank)]
    name = "flight_recorder"
    if not ready:
        return [
            Source(
                name,
                False,
                "the job is not set up to dump on request",
                f"start it with {flight_pipe.PIPE_VARIABLE}=/tmp/fr_ and "
                f"TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
            )
        ]
    if not options.flight_recorder:
        return [Source(name, False, "not requested", "--flight-recorder (the job writes files)")]
    with ThreadPoolExecutor(max_workers=len(ready)) as pool:
        found = list(
            pool.map(
                lambda one: flight_pipe.ask_for_dump(one.candidate.environment, one.rank), ready
            )
        )
    dumps = [path for path in found if isinstance(path, Path)]
    errors = [text for text in found if isinstance(text, str)]
    state = f"{len(dumps)} of {len(placed)} ranks wrote a dump" + "".join(
        f"; {text}" for text in errors[:1]
    )
    return [Source(name, bool(dumps), state), *(Source("dump", True, str(p)) for p in dumps)]


def _worker(one: Placed, samples: Sequence[Sample]) -> Worker:
    candidate = one.candidate
    return Worker(
        pid=candidate.pid,
        rank=one.rank,
        rank_source=one.source,
        world_size=candidate.integer("WORLD_SIZE", "SLURM_NTASKS") or 0,
        local_world_size=candidate.integer("LOCAL_WORLD_SIZE") or 0,
        title=candidate.title,
        labels=parse_title(candidate.title),
        environment=candidate.environment,
        rings=candidate.rings,
        samples=tuple(sample.processes[candidate.pid] for sample in samples),
        stacks=tuple(sample.stacks[candidate.pid] for sample in samples),
    )


def _relevant(placed: Sequence[Placed], *sources: Source) -> tuple[Source, ...]:
    """Return the sources without absent ones of GPUs, where no process uses a GPU."""
    if any(one.candidate.uses_gpu for one in placed):
        return sources
    return tuple(one for one in sources if one.available or one.name not in _OF_GPUS)


def _ring_source(workers: Sequence[Worker], rings: Sequence[Path]) -> Source:
    traced = sum(bool(worker.rings) for worker in workers)
    if traced:
        return Source("rings", True, f"{traced} of {plural(len(workers), 'rank')} traced")
    return Source(
        "rings",
        False,
        "the job was not traced",
        "start it with `ncclscope run -- COMMAND` to compare its calls, not only its stacks",
    )


def _notes(placed: Sequence[Placed]) -> tuple[str, ...]:
    notes = []
    inferred = {
        "pid": "rank inferred: no source names the ranks; processes are numbered in the order "
        "of their pids",
        "title": "rank inferred from process titles; sizes are the largest numbers in them",
        "LOCAL_RANK": "rank inferred from LOCAL_RANK, which assumes a single host",
    }
    for source in dict.fromkeys(one.source for one in placed):
        if source in inferred:
            notes.append(inferred[source])
    sizes = {one.candidate.integer("WORLD_SIZE", "SLURM_NTASKS") or 0 for one in placed}
    if max(sizes, default=0) > len(placed):
        notes.append(f"the job has {max(sizes)} ranks; {len(placed)} of them were sampled here")
    return tuple(notes)
