"""Where torch's Flight Recorder writes the dump of a rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


def dump_files(environment: Mapping[str, str], rank: int) -> Iterator[Path]:
    """Yield the files that torch may write; variables and defaults differ between versions.

    Args:
        environment: Environment variables of the rank's process.
        rank: Its global rank.
    """
    prefixes = [environment[name] for name in _VARIABLES if name in environment]
    if not prefixes:
        cache = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        prefixes = ["/tmp/nccl_trace_rank_", f"{cache}/torch/comm_lib_trace_rank_"]
    for prefix in prefixes:
        yield Path(f"{prefix}{rank}")


def stamp(path: Path) -> tuple[int, int] | None:
    """Return a file's modification time in nanoseconds and its size, or None if it has no bytes."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size) if status.st_size else None
