"""Read rings, dumps, traces and bundles into a :class:`~ncclscope.model.Run`."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ncclscope.errors import DamagedFileError, InputError, NothingFoundError
from ncclscope.model import Communicator, Rank, Run
from ncclscope.model.metadata import ENDS
from ncclscope.model.snapshot import Snapshot
from ncclscope.model.text import plural
from ncclscope.model.windows import infer_windows
from ncclscope.progress import steps
from ncclscope.readers.attempts import Attempts
from ncclscope.readers.bundle import is_snapshot, read_snapshot, with_snapshot
from ncclscope.readers.flight_recorder.job import settle
from ncclscope.readers.flight_recorder.reader import NoDumpError, is_dump, read_dump
from ncclscope.readers.jsonl.trace import is_trace, read_trace
from ncclscope.readers.late_starts import number_late
from ncclscope.readers.launchers import restarts, with_ends
from ncclscope.readers.linked import separate_linked
from ncclscope.readers.members import join_processes, with_members
from ncclscope.readers.nested import separate_nested
from ncclscope.readers.nodes import CUT_SUFFIX, Nodes
from ncclscope.readers.partitions import with_parts
from ncclscope.readers.registry import reader_of
from ncclscope.readers.replicas import number_rest, separate_replicas, span
from ncclscope.readers.ring.crowd import without_long_over
from ncclscope.readers.ring.packed import RING_SUFFIX, read_packed_ring
from ncclscope.readers.ring.ranks import read_ring
from ncclscope.readers.snapshots import join_snapshots
from ncclscope.readers.unranked import number_unranked
from ncclscope.readers.untraced import in_order, of_job, read_untraced, separate_untraced
from ncclscope.resources import without_collection
from ncclscope.ring import layout
from ncclscope.ring.place import UNTRACED_SUFFIX, fallbacks_of, moved_text
from ncclscope.untrusted import MAX_RANKS, check_kind, open_regular, printable

__all__ = [
    "assemble",
    "cannot_text",
    "follow_pointer",
    "input_files",
    "open_run",
    "ring_files",
    "untraced_files",
    "with_unreadable",
]

_LONGEST_NOTE = 1 << 12
_MOST_BESIDE = 8
"""Other jobs of a directory that are judged, too."""
_SAME_END_NS = 5 * 10**9


@without_collection()
def open_run(*paths: str | os.PathLike[str]) -> Run:
    """Read every ring, dump and trace at or below the given paths.

    Args:
        *paths: Files or directories.

    Returns:
        One run: the newest, if the input holds several.

    Raises:
        InputError: A path does not exist or cannot be read.
        NothingFoundError: No path holds a file that can be read.
    """
    notes: list[str] = []
    ranks: list[Rank] = []
    snapshots: list[Snapshot] = []
    empty: list[Path] = []
    refused = 0
    seen = set()
    nodes = Nodes()
    given_paths = {Path(path) for path in paths}
    files = without_long_over(list(input_files(paths, notes)), notes)
    for path in steps("reading", files):
        try:
            check_kind(path)
            if path.name.endswith(CUT_SUFFIX):
                raise DamagedFileError(f"{path.with_suffix('')} is not read: cut in transfer")
            if is_snapshot(path):
                snapshots.append(replace(read_snapshot(path), node=nodes.of(path)))
                continue
            if path.name.endswith(UNTRACED_SUFFIX):
                stone = read_untraced(path)
                ranks += [] if stone is None else [nodes.annotate(stone)]
                continue
            reader = _reader(path)
            status = path.stat()
            if status.st_size == 0:
                empty.append(path)
            elif (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                is_ring = reader in (read_ring, read_packed_ring)
                rank = nodes.annotate(reader(path)) if is_ring else reader(path)
                ranks.append(replace(rank, source=printable(rank.source)))
                # Without its metadata, a ring may be that of any rank.
                refused += is_ring and rank.rank < 0 and not rank.pid
        except NoDumpError as error:
            if path in given_paths:
                notes.append(printable(str(error)))
        except DamagedFileError as error:
            notes.append(printable(str(error)))
            refused += 1
        except (MemoryError, RecursionError):
            notes.append(printable(f"{path} is left out: it is too large or nested too deeply"))
            refused += 1
        except OSError as error:
            notes.append(cannot_text(path, error))
            refused += 1
    given = tuple(printable(str(path)) for path in paths)
    if not ranks and not snapshots:
        if notes:
            raise InputError(notes[0], "nothing else was found")
        what = "only empty files" if empty else "no ring, no dump and no trace"
        raise NothingFoundError(f"{', '.join(given)}: {what} found", _advice(given_paths))
    hollow = [path for path in empty if path.name.endswith((layout.SUFFIX, RING_SUFFIX))]
    notes += [printable(f"{path} is empty") for path in hollow]
    refused += len(hollow)
    run = with_unreadable(assemble(ranks, notes=notes, sources=given), refused)
    if not snapshots:
        return run
    return with_snapshot(run, join_snapshots(snapshots, run))


def with_unreadable(run: Run, refused: int) -> Run:
    """Return a run whose missing ranks are unreadable if that many files are.

    Args:
        run: The run.
        refused: Number of files that cannot be read, each of which may be that of any rank.
    """
    lost = tuple(rank for rank in run.missing if rank not in run.unrecorded)
    return replace(run, unreadable=lost) if 0 < len(lost) <= refused else run


def assemble(
    processes: Iterable[Rank], *, notes: Iterable[str] = (), sources: Iterable[str] = ()
) -> Run:
    """Combine the records of several processes into one run.

    Args:
        processes: One rank per input file.
        notes: Notes for the run so far.
        sources: Paths that the user named.
    """
    remarks = list(notes)
    first, *others = separate_linked(processes, remarks)
    own, nested = separate_nested(first)
    run = _assemble(own, remarks, sources)
    inside = [replace(_assemble(job, [], sources), started_by=rank) for rank, job in nested.items()]
    linked = (*(_assemble(job, [], sources) for job in others), *inside)
    return replace(run, linked=(*linked, *run.linked))


def _assemble(processes: Iterable[Rank], remarks: list[str], sources: Iterable[str]) -> Run:
    """Combine the records of the processes of one job."""
    processes, untraced = separate_untraced(processes)
    processes, dumps = _without_repeats(settle(_distinct(processes), remarks))
    processes, beside = _newest_run([*processes, *untraced], remarks)
    processes, untraced = separate_untraced(_newest_attempt(processes, remarks))
    processes = infer_windows(join_processes(processes))
    untraced = of_job(untraced, processes)
    numbered = [process for process in (*processes, *untraced) if process.rank >= 0]
    ranks, untraced_ranks = separate_untraced(separate_replicas(numbered, remarks))
    loose, others = number_rest(ranks, [process for process in processes if process.rank < 0])
    ranks, others = number_unranked([*ranks, *loose], others, remarks)
    ranks = with_ends(number_late(with_members(ranks)), others)
    ranks.sort(key=lambda rank: rank.rank)
    remarks.extend(restarts(ranks, others))
    communicators: dict[str, Communicator] = {}
    for rank in ranks:
        for key, log in rank.logs.items():
            known = communicators.get(key)
            # Members agree on the ranks, except for one that did not know all of them.
            if known is None or len(log.communicator.ranks) > len(known.ranks):
                communicators[key] = log.communicator
            elif not known.label and log.communicator.label:
                communicators[key] = replace(known, label=log.communicator.label)
    expected = max(
        [rank.world_size for rank in (*ranks, *untraced_ranks)]
        + [rank.rank + 1 for rank in (*ranks, *untraced_ranks)]
        + [max(comm.ranks, default=-1) + 1 for comm in communicators.values()],
        default=0,
    )
    if expected > MAX_RANKS:
        remarks.append(f"{expected} ranks are implausible; only the ranks that were read count")
        expected = min(max((rank.rank for rank in ranks), default=-1) + 1, MAX_RANKS)
    return Run(
        ranks=tuple(ranks),
        communicators=with_parts(communicators, expected),
        expected=expected,
        notes=tuple(remarks),
        sources=tuple(sources),
        others=tuple(others),
        dumped=assemble(dumps) if dumps else None,
        linked=tuple(replace(_assemble(one, [], sources), beside=True) for one in beside),
        untraced=tuple(in_order([*untraced_ranks, *(one for one in untraced if one.rank < 0)])),
    )


def input_files(paths: Iterable[str | os.PathLike[str]], notes: list[str]) -> Iterator[Path]:
    """Yield every ring, dump, trace and process snapshot at or below the given paths.

    Args:
        paths: Files or directories.
        notes: Receives a note for each file that cannot be read.

    Raises:
        InputError: A path does not exist or cannot be read.
    """

    def refuse(error: OSError) -> None:
        notes.append(cannot_text(Path(error.filename), error))

    for given in paths:
        path = Path(given)
        try:
            kind = path.stat().st_mode
        except FileNotFoundError:
            raise InputError(f"{printable(str(path))} does not exist") from None
        except (OSError, ValueError) as error:
            raise InputError(cannot_text(path, error)) from None
        if not stat.S_ISDIR(kind):
            yield path
            continue
        for folder, folders, names in os.walk(path, onerror=refuse):
            notes += [
                printable(f"{Path(folder, name)} is no ring: a directory")
                for name in sorted(folders)
                if name.endswith(layout.SUFFIX)
            ]
            for name in sorted(names):
                found = Path(folder, name)
                if name.endswith(layout.MOVED_SUFFIX):
                    yield from follow_pointer(found)
                elif (
                    name.endswith((layout.SUFFIX, RING_SUFFIX, CUT_SUFFIX, UNTRACED_SUFFIX))
                    or is_snapshot(found)
                    or is_trace(found)
                    or is_dump(found)
                    or reader_of(found) is not None
                ):
                    yield found


def _reader(path: Path) -> Callable[[Path], Rank]:
    if other := reader_of(path):
        return other.read
    if path.name.endswith(RING_SUFFIX):
        return read_packed_ring
    return read_trace if is_trace(path) else read_dump if is_dump(path) else read_ring


def ring_files(directory: Path) -> Iterator[Path]:
    """Yield the rings at or below a directory, and those that moved for lack of room."""
    return _files(directory, layout.SUFFIX)


def untraced_files(directory: Path) -> Iterator[Path]:
    """Yield the files of processes that are not recorded, as :func:`ring_files` does."""
    return _files(directory, UNTRACED_SUFFIX)


def _files(directory: Path, suffix: str) -> Iterator[Path]:
    for folder, _, names in os.walk(directory):
        for name in sorted(names):
            if name.endswith(suffix + layout.MOVED_SUFFIX):
                yield from follow_pointer(Path(folder, name))
            elif name.endswith(suffix):
                yield Path(folder, name)


def follow_pointer(pointer: Path) -> Iterator[Path]:
    """Yield the file that a pointer file names: it moved for lack of room.

    On a full file system, the pointer may be empty; then its own name is the file's.
    """
    try:
        with open(open_regular(pointer, follow=False), "rb") as file:
            owner = os.fstat(file.fileno()).st_uid
            named = os.fsdecode(file.read(_LONGEST_NOTE)).strip()
        folders = [] if named else fallbacks_of(pointer.parent, owner)
        name = pointer.name.removesuffix(layout.MOVED_SUFFIX)
        targets = [Path(named)] if named else [folder / name for folder in folders]
        suffix = os.path.splitext(name)[1]
        target = next((path for path in targets if path.exists()), None)
        if target is None or suffix not in (layout.SUFFIX, UNTRACED_SUFFIX):
            return
        if target.suffix == suffix and target.stat().st_uid == owner:
            yield target
    except (OSError, ValueError, DamagedFileError):
        return


def _advice(paths: Iterable[Path]) -> str:
    """Return what to name instead of paths without any record."""
    return moved_text(sorted(paths)) or (
        "name the directory of NCCLSCOPE_DIR or `ncclscope run --dir`; for a job that runs "
        "now: ncclscope attach"
    )


def cannot_text(path: Path, error: OSError | ValueError) -> str:
    """Return a line that says why a file cannot be read."""
    reason = getattr(error, "strerror", None) or str(error)
    return printable(f"{path} cannot be read: {reason[:1].lower()}{reason[1:]}")


def _distinct(processes: Iterable[Rank]) -> list[Rank]:
    """Return each process once: a ring may be next to a trace exported from it."""
    found: dict[tuple[object, ...], Rank] = {}
    for number, process in enumerate(processes):
        who: tuple[object, ...] = (process.host, process.pid, process.started_ns, process.rank)
        if not (process.pid and process.started_ns):
            who = (number,)
        known = found.setdefault(who, process)
        if known.window or (_is_trace(known) and not _is_trace(process)):
            found[who] = process
    return list(found.values())


def _without_repeats(processes: list[Rank]) -> tuple[list[Rank], list[Rank]]:
    """Return the processes and, separately, Flight Recorder dumps whose ranks all have rings.

    A bundle of `attach` holds both, of one job. Rings record more about each call.
    """
    rings = [process for process in processes if not _is_dump(process)]
    dumps = [process for process in processes if _is_dump(process)]
    if not {process.rank for process in dumps} <= {process.rank for process in rings}:
        return processes, []
    return rings, dumps


def _is_dump(process: Rank) -> bool:
    return process.details.get("format") == "flight_recorder"


def _is_trace(process: Rank) -> bool:
    return process.details.get("format") == "jsonl"


def _newest_run(processes: list[Rank], notes: list[str]) -> tuple[list[Rank], list[list[Rank]]]:
    """Return the newest run, and others that used the same directory until it ended.

    Args:
        processes: The processes of all runs.
        notes: Receives what was joined, and what was left out as earlier.
    """
    runs: dict[str, list[Rank]] = {}
    loose = []
    for process in processes:
        run = str(process.details.get("run") or "")
        if not run and _is_trace(process):
            loose.append(process)  # a trace may lack a run id, and then belongs to the newest run
        else:
            runs.setdefault(run, []).append(process)
    if len(runs) < 2:
        return processes, []
    newest = max(runs, key=lambda run: max(map(_began, runs[run])))
    kept, parts = list(runs.pop(newest)), 1
    beside: list[list[Rank]] = []
    earlier = []
    for part in runs.values():
        if _belongs(part, kept):
            kept += part
            parts += 1
        elif len(beside) < _MOST_BESIDE and _lasts_as_long(part, kept):
            beside.append(part)
        else:
            earlier.append(part)
    if parts > 1:
        notes.append(
            f"{parts} runs are treated as one job: they share communicators or ran at the same "
            f"time, with different ranks of the same world size"
        )
    if beside:
        notes.append(
            f"{plural(len(beside) + 1, 'job')} recorded here at the same time; each is judged for "
            f"itself"
        )
    if earlier:
        rings = plural(sum(map(len, earlier)), "ring")
        notes.append(f"{rings} of {plural(len(earlier), 'earlier run')} left out")
    return kept + loose, beside


def _lasts_as_long(part: Sequence[Rank], kept: Sequence[Rank]) -> bool:
    """Return whether a run went on beside a newer one until that one ended, or still goes on."""
    if not any(rank.logs for rank in part) or not any(rank.logs for rank in kept):
        return False
    if any(rank.alive for rank in (*part, *kept)):
        return all(any(rank.alive for rank in run) for run in (part, kept))
    ends = [max(map(_ended_ns, run)) for run in (part, kept)]
    began = max(min(span(rank)[0] for rank in run) for run in (part, kept))
    return bool(ends[0]) and ends[0] > began and ends[0] >= ends[1] - _SAME_END_NS


def _began(process: Rank) -> int:
    """Return when a process began; 0 for a launcher, whose ring is made when ranks have ended."""
    return 0 if ENDS in process.details else process.started_ns or 0


def _newest_attempt(processes: list[Rank], notes: list[str]) -> list[Rank]:
    """Return the processes without those that torchrun ended before it started all again."""
    abouts = [{**process.details, "host": process.host} for process in processes]
    attempts = Attempts(abouts)
    kept = [one for one, about in zip(processes, abouts, strict=True) if attempts.is_newest(about)]
    if left_out := len(processes) - len(kept):
        notes.append(f"{plural(left_out, 'ring')} of earlier attempts left out")
    return kept


def _ended_ns(rank: Rank) -> int:
    """Return when a rank last showed life, 0 if unknown: heartbeats are up to a second apart."""
    began, seen = span(rank)
    last = max((call.time_ns or 0 for call in rank.last_calls().values()), default=0)
    return max(seen, last if last >= began else 0)


def _belongs(part: Sequence[Rank], kept: Sequence[Rank]) -> bool:
    """Return whether two runs are parts of one job, one `ncclscope run` per node.

    They must have different ranks, the same world size, and share a communicator or overlap in
    time. If both have a rank, they are different jobs or the job was restarted.
    """
    numbers = {rank.rank for rank in kept if rank.rank >= 0}
    own = {rank.rank for rank in part if rank.rank >= 0}
    sizes = {rank.world_size for rank in (*part, *kept) if rank.rank >= 0}
    if not own or own & numbers or len(sizes) != 1:
        return False
    if {key for rank in part for key in rank.logs} & {key for rank in kept for key in rank.logs}:
        return True
    ended = max(_ended_ns(rank) for rank in part)
    began = min((start for rank in kept if (start := span(rank)[0])), default=0)
    return not ended or ended > began
