"""Build every wheel of a release and try those that this machine can run.

zig compiles for both architectures against glibc 2.17, so that no container is needed. auditwheel
says whether the result is what its tag claims.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ncclscope_build
import ziglang

MACHINES = ("x86_64", "aarch64")
GLIBC = (2, 17)
"""Oldest glibc; that of manylinux2014."""

_TRY = """
import sys, ncclscope
from ncclscope import native
free = "t" in sys.abiflags
assert bool(native.why_not()) == free, native.why_not()
assert (native.plugin_path() is None) == free
print(sys.version.split()[0], native.why_not() or "with the C core")
"""
_ABOUT = "import sys; print(sys.version_info >= (3, 10), sys.version, sys.abiflags)"


def main() -> None:
    """Build the wheels into a folder, in place of older ones, and check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("dist"))
    parser.add_argument("--machine", choices=MACHINES, nargs="*", default=MACHINES)
    options = parser.parse_args()
    target = options.output.resolve()
    target.mkdir(parents=True, exist_ok=True)
    # pip chooses among all that are there.
    for old in (*target.glob("ncclscope-*.whl"), *target.glob("ncclscope-*.tar.gz")):
        old.unlink()
    os.chdir(Path(__file__).parents[1])
    for machine in options.machine:
        check_tag(target / build_for(machine, target))
    os.environ["NCCLSCOPE_BUILD"] = "pure"
    ncclscope_build.build_wheel(str(target))
    ncclscope_build.build_sdist(str(target))
    with tempfile.TemporaryDirectory() as folder:
        for python in interpreters():
            try_wheels(python, target, Path(folder))
    print(*sorted(path.name for path in target.iterdir()), sep="\n")


def build_for(machine: str, target: Path) -> str:
    """Build the wheel of an architecture and return its name."""
    zig = Path(ziglang.__file__).with_name("zig")
    os.environ.update(
        CC=f"{zig} cc -target {machine}-linux-gnu.{'.'.join(map(str, GLIBC))}",
        CMAKE_ARGS=f"-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR={machine}",
        # The linker strips: the machine's own `strip` may not know the architecture.
        LDFLAGS="-s",
        NCCLSCOPE_BUILD="native",
    )
    tags = [f"cp310-abi3-{old}_{machine}" for old in ("manylinux_2_17", "manylinux2014")]
    settings = {"wheel.tags": tags, "install.strip": "false"}
    return ncclscope_build.build_wheel(str(target), settings)


def check_tag(wheel: Path) -> None:
    """End the program if the wheel needs a newer glibc or another library."""
    auditwheel = [sys.executable, "-m", "auditwheel", "show", wheel]
    done = subprocess.run(auditwheel, capture_output=True, text=True, check=True)
    words = " ".join(done.stdout.split())
    found = re.search(r'platform tag: "manylinux_(\d+)_(\d+)_', words)
    if found is None or tuple(map(int, found.groups())) > GLIBC:
        sys.exit(f"{wheel.name} is not what its tag says:\n{done.stdout}")
    print(f"{wheel.name}: {found[0]}...", flush=True)


def interpreters() -> Iterator[str]:
    """Yield one interpreter of each supported version on the search path or of pyenv."""
    places = os.environ["PATH"].split(os.pathsep)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    places += [str(folder) for folder in sorted(pyenv.glob("versions/3.*/bin"))]
    seen = set()
    for place in places:
        for path in sorted(Path(place).glob("python3.*")):
            if not re.fullmatch(r"python3\.\d+t?", path.name):
                continue
            done = subprocess.run([path, "-c", _ABOUT], capture_output=True, text=True, check=False)
            if done.stdout.startswith("True") and done.stdout not in seen:
                seen.add(done.stdout)
                yield str(path)


def try_wheels(python: str, target: Path, folder: Path) -> None:
    """Let pip choose a wheel for an interpreter, load what it has installed, and run the demo."""
    fresh = Path(tempfile.mkdtemp(dir=folder))
    subprocess.run([python, "-m", "venv", "--without-pip", fresh], check=True)
    own = fresh / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", own, "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, "--no-deps", "--no-index", "-f", target, "ncclscope"], check=True)
    subprocess.run([own, "-c", _TRY], cwd=fresh, check=True)
    # Its dependencies come from the index; what is there already stays.
    subprocess.run([*pip, "-f", target, "ncclscope"], check=True)
    demo = [fresh / "bin" / "ncclscope", "demo", "--json"]
    done = subprocess.run(demo, cwd=fresh, capture_output=True, text=True, check=True)
    print(json.loads(done.stdout)["summary"])


if __name__ == "__main__":
    main()
