"""Build wheels, sdists and editable installs with scikit-build-core.

Two things differ from it. What cannot be compiled here does not fail an installation: the wheel is
then pure Python. And an editable install is a path file and libraries in the source tree, so that
type checkers, profilers and child processes see the sources as they see any other folder.

``NCCLSCOPE_BUILD=native`` fails where the libraries cannot be built, ``pure`` leaves them out. As a
program it builds the libraries into the source tree.
"""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from scikit_build_core import build as backend
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

_ROOT = Path(__file__).parents[1]
_ROOTS = (_ROOT, _ROOT / "analyzers", _ROOT / "patches")
"""Folders of the packages: what an editable install adds to the search path."""
_SWITCH = "NCCLSCOPE_BUILD"
_LIBRARIES = "ncclscope/native/"

# There are no hooks that prepare metadata: the build shows whether it is that of a pure wheel.


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build a wheel with the libraries, or without where they cannot be built."""
    wanted = os.environ.get(_SWITCH, "")
    if wanted not in ("", "native", "pure"):
        raise SystemExit(f"{_SWITCH}={wanted}: use native or pure, or leave it unset")
    try:
        return backend.build_wheel(wheel_directory, config_settings)
    # The backend ends the process where a compiler fails, and raises where CMake is missing.
    except (Exception, SystemExit) as error:
        if wanted:
            raise
        print(f"*** ncclscope's C core is not built ({error!r}): the wheel is pure Python")
    os.environ[_SWITCH] = "pure"
    try:
        return backend.build_wheel(wheel_directory, config_settings)
    finally:
        del os.environ[_SWITCH]


def build_editable(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the libraries into the source tree, and a wheel that adds the tree to the path."""
    with tempfile.TemporaryDirectory() as folder:
        name = build_wheel(folder, config_settings)
        with zipfile.ZipFile(Path(folder, name)) as wheel:
            _place_libraries(wheel)
            metadata = {
                member: wheel.read(member)
                for member in wheel.namelist()
                if ".dist-info/" in member and not member.endswith("/RECORD")
            }
    paths = "".join(f"{root}\n" for root in _ROOTS).encode()
    _write_wheel(Path(wheel_directory, name), {"_ncclscope_editable.pth": paths, **metadata})
    return name


def _place_libraries(wheel: zipfile.ZipFile) -> list[Path]:
    """Move the libraries of a wheel into the source tree; those that it lacks are removed there."""
    folder = _ROOT / _LIBRARIES
    built = {
        Path(name).name: wheel.read(name)
        for name in wheel.namelist()
        if name.startswith(_LIBRARIES) and name.endswith(".so")
    }
    for old in folder.glob("*.so"):
        if old.name not in built:
            old.unlink()
    for name, content in built.items():
        # A process may have the old one mapped, and another one may be starting.
        new = folder / f".{name}.{os.getpid()}"
        new.write_bytes(content)
        new.chmod(0o755)
        new.replace(folder / name)
    return [folder / name for name in built]


def _write_wheel(path: Path, contents: dict[str, bytes]) -> None:
    (metadata,) = {name.partition("/")[0] for name in contents if ".dist-info/" in name}
    record = f"{metadata}/RECORD"
    lines = []
    for name, content in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in contents.items():
            wheel.writestr(name, content)
        wheel.writestr(record, "".join([*lines, f"{record},,\n"]))


def main() -> None:
    """Build the libraries into the source tree, or fail."""
    os.chdir(_ROOT)
    os.environ.setdefault(_SWITCH, "native")
    with tempfile.TemporaryDirectory() as folder:
        name = build_wheel(folder)
        with zipfile.ZipFile(Path(folder, name)) as wheel:
            placed = _place_libraries(wheel)
    print(*(path.relative_to(_ROOT) for path in placed), sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main()
