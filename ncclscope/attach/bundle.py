"""Write a process snapshot to a directory that ``ncclscope diagnose`` reads on any machine.

================== =========================================================================
file               contents
================== =========================================================================
attach.json        the process snapshot; :mod:`ncclscope.readers.bundle` reads it
rings/             copies of the rings of a traced job, compressed by gzip, and of *.untraced
flight_recorder/   dumps that the job wrote on request
ras.txt            the answer of NCCL's RAS, unchanged
verdict.json       the verdict, for scripts
verdict.txt        the verdict, for people
================== =========================================================================
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ncclscope.attach.session import JobSample
from ncclscope.errors import DamagedFileError, UsageError, os_reason
from ncclscope.model import Run, sites
from ncclscope.model.snapshot import Frame, Snapshot, Source, Stacks, Thread, Worker
from ncclscope.private import (
    PACKED_SUFFIX,
    copy_private,
    make_private,
    pack_private,
    write_private,
)
from ncclscope.readers.bundle import CAPTURE_FILE
from ncclscope.ring import entries, layout
from ncclscope.ring.image import RingImage
from ncclscope.ring.tombstone import PAGE
from ncclscope.stamp import stamped
from ncclscope.untrusted import open_regular, parse, parse_object

_SECRET_FIELDS = ("argv", "environ", "cwd", "path")
_SITES = ("created_at", "site", "user_site")
_ADVICE = ("enable",)
"""Texts of ncclscope itself: commands to copy."""
_ADDRESS = re.compile(r"(?<![\w.])/(?:[^\s/:;,'\"]+/)*([^\s/:;,'\"]+)")


def check_directory(path: str) -> Path:
    """Return the directory for a new bundle, checked before any process is sampled.

    Raises:
        UsageError: It already holds files, or is not a directory.
    """
    directory = Path(path)
    try:
        if any(directory.iterdir()):
            raise UsageError(f"{path} is not empty", "name a new directory for the bundle")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _unusable(directory, error) from None
    return directory


def _unusable(directory: Path, error: OSError) -> UsageError:
    return UsageError(f"{directory} cannot be used: {os_reason(error)}", "name another directory")


def write_bundle(
    directory: Path,
    sample: JobSample,
    verdict: dict[str, object],
    screen: str,
    *,
    redacted: bool = False,
) -> list[str]:
    """Write a bundle.

    Args:
        directory: Target directory; created with access for its owner only.
        sample: The sampled job.
        verdict: The verdict as a JSON document.
        screen: The verdict as text.
        redacted: Leave out paths, command lines and environments.

    Returns:
        One sentence for each file that could not be written.

    Raises:
        UsageError: The directory cannot be written to.
    """
    snapshot = redact(sample.snapshot) if redacted else sample.snapshot
    failed: list[str] = []
    try:
        make_private(directory)
        write_snapshot(directory, snapshot)
        document = _redact_texts(verdict) if redacted else verdict
        write_private(directory / "verdict.json", json.dumps(stamped(document)) + "\n")
        write_private(directory / "verdict.txt", screen + "\n")
        if snapshot.ras is not None:
            write_private(directory / "ras.txt", snapshot.ras.text)
    except OSError as error:
        raise _unusable(directory, error) from None
    failed += _copy(sample.rings, directory / "rings", _redacted if redacted else pack_private)
    keep = _redacted_page if redacted else copy_private
    failed += _copy(sample.untraced, directory / "rings", keep, "")
    if sample.dumps and redacted:
        failed.append("Flight Recorder dumps hold paths and are left out of a redacted bundle")
    else:
        failed += _copy(sample.dumps, directory / "flight_recorder", copy_private, "")
    return failed


def write_snapshot(directory: Path, snapshot: Snapshot) -> None:
    """Write a process snapshot beside the rings in a directory.

    Raises:
        OSError: The directory cannot be written to.
    """
    write_private(directory / CAPTURE_FILE, json.dumps(snapshot.to_dict()) + "\n")


def redact_run(run: Run) -> Run:
    """Return a run without what `redact` removes, so that its verdict can be published."""
    return replace(
        run,
        snapshot=None if run.snapshot is None else redact(run.snapshot),
        sources=tuple(Path(source).name for source in run.sources),
        notes=tuple(_without_paths(note) for note in run.notes),
    )


def redact(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without folders of source files, command lines and environments."""
    return replace(
        snapshot,
        workers=tuple(_redact_worker(worker) for worker in snapshot.workers),
        engines=tuple(_redact_worker(engine) for engine in snapshot.engines),
        servers=tuple(_redact_worker(server) for server in snapshot.servers),
        sources=tuple(
            Source(one.name, one.available, _without_paths(one.state), one.enable)
            for one in snapshot.sources
        ),
        notes=tuple(_without_paths(note) for note in snapshot.notes),
        redacted=True,
    )


def _redact_worker(worker: Worker) -> Worker:
    return replace(
        worker,
        title=worker.title.split(" ", 1)[0] if worker.labels else "",
        environment={
            name: value
            for name, value in worker.environment.items()
            # These two map ranks to GPUs and reveal nothing else.
            if name in ("LOCAL_RANK", "CUDA_VISIBLE_DEVICES")
        },
        rings=tuple(Path(ring).name for ring in worker.rings),
        stacks=tuple(
            Stacks(tuple(map(_redact_thread, stacks.threads)), stacks.error)
            for stacks in worker.stacks
        ),
        lost_peers=(),  # addresses
    )


def _redact_thread(thread: Thread) -> Thread:
    return replace(thread, frames=tuple(_redact_frame(frame) for frame in thread.frames))


def _redact_frame(frame: Frame) -> Frame:
    """Remove a frame's folder, except in public libraries, whose paths identify collectives."""
    public = re.search(
        r"(?:^|/)((?:torch|vllm|sglang|deepspeed|ray|multiprocessing|filelock|triton|safetensors|"
        r"huggingface_hub|transformers|flashinfer)/.*)",
        frame.file,
    )
    return replace(frame, file=public[1] if public else frame.base, path="")


def _redact_texts(value: Any, name: str = "") -> Any:
    """Remove folders from all texts of a JSON document."""
    if isinstance(value, Mapping):
        return {key: _redact_texts(one, str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_redact_texts(one, name) for one in value]
    if not isinstance(value, str):
        return value
    if name in _ADVICE:
        return value
    if name in _SITES:
        return sites.short(value)
    return Path(value).name if name == "file" else _without_paths(value)


def _without_paths(text: str) -> str:
    return _ADDRESS.sub(r"\1", text)


def _copy(
    files: Sequence[Path],
    target: Path,
    copy: Callable[[Path, Path], None],
    suffix: str = PACKED_SUFFIX,
) -> list[str]:
    failed = []
    for file in files:
        to = target / (file.name + suffix)
        try:
            make_private(target)
            copy(file, to)
        except (OSError, DamagedFileError) as error:
            to.unlink(missing_ok=True)
            failed.append(f"{file.name} is not in the bundle: {error}")
    return failed


def _redacted(source: Path, target: Path) -> None:
    """Write a compressed copy of a ring without command lines and paths."""
    plain = target.with_suffix("")
    try:
        copy_private(source, plain)
        _redact_ring(plain)
        pack_private(plain, target)
    finally:
        plain.unlink(missing_ok=True)


def _redacted_page(source: Path, target: Path) -> None:
    """Write a copy of the file of a process without a record, with no paths in its reason."""
    with open(open_regular(source, follow=False), "rb") as file:
        about = parse_object(file.read(PAGE))
    write_private(target, json.dumps(_redact_texts(about)) + "\n")


def _redact_ring(path: Path) -> None:
    """Remove command lines and paths from a ring's process description and its call sites.

    A call site keeps the names of its files and functions, without folders.
    """
    with RingImage(path) as image:
        geometry = image.geometry
        about = image.read_about()
        generation = image.word(layout.HEADER_ABOUTS) if geometry.checked else 2
    kept = {name: value for name, value in about.items() if name not in _SECRET_FIELDS}
    text = json.dumps(_redact_texts(kept)).encode()
    head = layout.ABOUT.pack(generation, len(text), zlib.crc32(text, generation & 0xFFFFFFFF), 0)
    block = (head + text).ljust(geometry.about_size, b"\0")
    if len(block) > geometry.about_size:
        raise DamagedFileError("the redacted process description does not fit into the ring")
    with open(path, "r+b") as file:
        for copy in (0, 1) if geometry.checked else (0,):
            start = geometry.strings + copy * layout.pages(geometry.strings_size)
            file.seek(start)
            strings = _redact_strings(file.read(geometry.strings_size), checked=geometry.checked)
            file.seek(start)
            file.write(strings)
        for copy in (0, 1):
            file.seek(geometry.about + copy * geometry.about_size)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def _redact_strings(data: bytes, *, checked: bool = True) -> bytes:
    """Shorten the call sites in a ring's strings section, padded with blanks.

    Entries keep their length, since it locates the next entry. Damaged ones are zeroed.
    """
    kept = bytearray(len(data))
    head = layout.ENTRY.size
    for kind, before, is_whole, number, offset in entries.read(data, checked=checked):
        if not is_whole:
            continue
        text = before.decode("utf-8", "replace")
        if kind == layout.KIND_SITE:
            text = "\n".join(map(sites.short, text.split("\n")))
        elif kind == layout.KIND_COMM:
            text = _redact_communicator(text)
        after = text.encode()[: len(before)].ljust(len(before))
        kept[offset : offset + head] = data[offset : offset + head]
        kept[offset + head : offset + head + len(before)] = after
        if checked:
            sealed = layout.checksum(kind, number, after).to_bytes(4, "little")
            kept[offset + 4 : offset + 8] = sealed
        else:
            sealed = layout.old_checksum(kind, number, after).to_bytes(2, "little")
            kept[offset + 6 : offset + 8] = sealed
    return bytes(kept)


def _redact_communicator(spelled: str) -> str:
    try:
        about = parse(spelled)
    except ValueError:
        return spelled
    if not isinstance(about, dict) or not isinstance(about.get("created_at"), str):
        return spelled
    return json.dumps({**about, "created_at": sites.short(about["created_at"])})
