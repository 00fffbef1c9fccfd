"""Inputs that once failed, kept as the files in which they differ from their base."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from tests.fuzz.inputs import BaseInput, Input, Surface

__all__ = ["CORPUS", "add_kept", "keep"]

CORPUS = Path(__file__).parent.parent / "data" / "fuzz"
_SUFFIX = ".tar.gz"
_ABOUT = "input.json"
_FILES = "files/"


def keep(given: Input, surface: str, path: Path, found: str) -> None:
    """Write an input to a file.

    Args:
        given: The input.
        surface: Name of its surface.
        path: Where to, ending in ``.tar.gz``.
        found: What it was that failed.
    """
    about = {
        "surface": surface,
        "specimen": given.base.origin or given.base.name,
        "change": given.change,
        "forged": given.forged,
        "lost": [name for name, data in given.changed.items() if data is None],
        "found": found,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz", compresslevel=9) as archive:
        _add(archive, _ABOUT, json.dumps(about, indent=1).encode())
        for name, data in given.changed.items():
            if data is not None:
                _add(archive, _FILES + name, data)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def add_kept(surfaces: Mapping[str, Surface], paths: Iterable[Path] | None = None) -> None:
    """Give the surfaces the inputs that were kept, to be judged again and damaged further.

    Args:
        surfaces: By name.
        paths: The files; all of :data:`CORPUS` when absent.
    """
    for path in sorted(CORPUS.glob(f"*{_SUFFIX}")) if paths is None else paths:
        with tarfile.open(path) as archive:
            files = {
                member.name: file.read()
                for member in archive.getmembers()
                if (file := archive.extractfile(member)) is not None
            }
        about = json.loads(files.pop(_ABOUT))
        surface = surfaces.get(about["surface"])
        if surface is None:
            continue
        origin = next(one for one in surface.bases if one.name == about["specimen"])
        own = {name: data for name, data in origin.files.items() if name not in about["lost"]}
        own |= {name.removeprefix(_FILES): data for name, data in files.items()}
        name = path.name.removesuffix(_SUFFIX)
        surface.kept.append(_base(name, origin, own, forged=about["forged"]))


def _base(name: str, origin: BaseInput, files: dict[str, bytes], *, forged: bool) -> BaseInput:
    return replace(
        origin,
        name=f"kept {name}",
        files=files,
        calls=None if forged else origin.calls,
        origin=origin.name,
    )
