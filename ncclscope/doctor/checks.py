"""The checks of ``ncclscope doctor``. No heavy package is imported: versions are metadata."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from ncclscope import settings
from ncclscope.attach import environment, native
from ncclscope.attach.flight_pipe import PIPE_VARIABLE
from ncclscope.attach.gpu import open_nvml
from ncclscope.attach.ras import ask_ras, parse_address
from ncclscope.attach.stacks import PySpy, find_py_spy
from ncclscope.doctor.check import Check, Outcome
from ncclscope.doctor.file_systems import check_places
from ncclscope.doctor.installed import check_installation, vllm_version
from ncclscope.ring import layout
from ncclscope.wording.names import plural

__all__ = ["Check", "check_all", "is_useful"]

_SHM = Path("/dev/shm")
_MOST_RINGS = 4096
_SWITCHES = ("NCCLSCOPE_VLLM_DISPATCH", "NCCLSCOPE_VLLM_ROUTED_EXPERTS", "NCCLSCOPE_VLLM_CPU_MOE")


def check_all() -> list[Check]:
    """Run all checks, within a few seconds."""
    return [*_tracing(), *_attaching(), *check_installation("installation")]


def is_useful(checks: Sequence[Check]) -> bool:
    """Return whether a job can be traced or attached to on this machine."""
    status = {check.name: check.status for check in checks}
    return status["rings"] != "bad" or status["stacks"] == "ok"


# --- tracing ----------------------------------------------------------------------------------


def _tracing() -> Iterable[Check]:
    section = "tracing"
    named = os.environ.get("NCCLSCOPE_DIR") or os.environ.get("NCCL_SCOPE_DIR")
    yield Check(section, "switch", *_switch(named))
    yield Check(section, "variables", *_variables())
    yield from check_places(section, named)
    places = [Path(named)] if named else [path for path in (_SHM,) if path.is_dir()]
    yield Check(section, "recorded", *_found_rings(places))
    yield Check(section, "vllm", *_vllm_filter())


def _switch(named: str | None) -> Outcome:
    if os.environ.get("NCCLSCOPE") == "0":
        return "off", "NCCLSCOPE=0: nothing is traced", "unset NCCLSCOPE"
    if named:
        return "ok", f"NCCLSCOPE_DIR={named}: new processes are traced"
    return (
        "off",
        "NCCLSCOPE_DIR is not set: new processes are not traced",
        "ncclscope run -- COMMAND, or export NCCLSCOPE_DIR=/dev/shm/DIR",
    )


def _variables() -> Outcome:
    """Check the names of all variables, and say which of them change what vLLM posts or returns."""
    if hints := settings.hints():
        said, _, guess = hints[0].partition("; ")
        return "warn", said, guess
    switches = [f"{name}={given}" for name in _SWITCHES if (given := settings.variable(name[10:]))]
    if not switches:
        return "ok", "no switch of the vLLM plugin is set here"
    return "ok", f"{', '.join(switches)}: a line in vLLM's log says where it is in effect"


def _found_rings(places: Sequence[Path]) -> Outcome:
    found: dict[Path, int] = {}
    for place in places:
        for folder, folders, names in os.walk(place):
            if len(Path(folder).relative_to(place).parts) >= 3:
                folders.clear()
            count = sum(name.endswith(layout.SUFFIX) for name in names)
            if count:
                found[Path(folder)] = count
            if sum(found.values()) > _MOST_RINGS:
                break
    where = ", ".join(map(str, places)) or "/dev/shm"
    if not found:
        return "off", f"no ring below {where}"
    newest = max(found, key=_age)
    return (
        "ok",
        f"{plural(sum(found.values()), 'ring')} in {plural(len(found), 'folder')}, "
        f"the newest in {newest}",
        f"ncclscope diagnose {newest}",
    )


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _vllm_filter() -> Outcome:
    filter = os.environ.get("VLLM_PLUGINS")
    version = vllm_version()
    if version is None:
        return "off", "vLLM is not installed in this Python", "install ncclscope there"
    if filter is None:
        return "ok", f"vLLM {version}; VLLM_PLUGINS is not set: all load"
    if "ncclscope" in filter.split(","):
        return "ok", f"vLLM {version}; VLLM_PLUGINS={filter}"
    return (
        "bad",
        f"vLLM {version}; VLLM_PLUGINS={filter} does not include ncclscope",
        f"VLLM_PLUGINS={filter + ',' if filter else ''}ncclscope",
    )


# --- attaching --------------------------------------------------------------------------------


def _attaching() -> Iterable[Check]:
    section = "attaching to live processes"
    yield Check(section, "stacks", *_stacks())
    yield Check(section, "permission", *_scope())
    yield Check(section, "native", *_native())
    yield Check(section, "gpu", *_gpu())
    yield Check(section, "ras", *_ras())
    yield Check(section, "flight_recorder", *_flight_recorder())


def _native() -> Outcome:
    if not native.is_installed():
        return "off", "pystack is not installed", "pip install pystack"
    return "ok", f"pystack {environment.version_of('pystack') or '?'}: attach --native"


def _flight_recorder() -> Outcome:
    if pipe := os.environ.get(PIPE_VARIABLE):
        return "ok", f"{PIPE_VARIABLE}={pipe}: attach --flight-recorder"
    return (
        "off",
        f"{PIPE_VARIABLE} is not set here",
        f"start the job with {PIPE_VARIABLE}=/tmp/fr_ TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
    )


def _stacks() -> Outcome:
    """Read stacks of a test process that is, like any worker, not a child of py-spy."""
    program = find_py_spy()
    if program is None:
        return "bad", "py-spy is not installed", "pip install py-spy"
    version = environment.version_of("py-spy") or "?"
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        stacks = PySpy(program).read_one(process.pid)
        process.kill()
    if stacks.error:
        return "bad", f"py-spy {version}: {stacks.error}", environment.permission_help([])
    return "ok", f"py-spy {version} reads a process of this user"


def _scope() -> Outcome:
    """Check permission on real processes: settings alone do not show what a sandbox forbids."""
    refused, readable = environment.try_reading()
    if refused:
        state = f"{refused} of {refused + readable} Python processes of this user cannot be read"
        how = environment.permission_help([]) or "run attach where the job runs, in its container"
        return "warn" if readable else "bad", state, how
    scope = environment.ptrace_scope()
    yama = "no Yama" if scope is None else f"ptrace_scope {scope}"
    if environment.has_ptrace_capability():
        state = f"{yama}, CAP_SYS_PTRACE: any process can be read"
        return "ok", state
    if scope in (None, 0):
        state = f"{yama}: processes of the same user can be read"
        return "ok", state
    return (
        "bad",
        f"ptrace_scope {scope}, no CAP_SYS_PTRACE: py-spy may not read other processes",
        environment.permission_help([]),
    )


def _gpu() -> Outcome:
    nvml = open_nvml()
    if isinstance(nvml, str):
        package_missing = "installed" in nvml
        how = "pip install nvidia-ml-py" if package_missing else "install the NVIDIA driver"
        return "off", nvml, how
    samples = nvml.read()
    nvml.close()
    kinds = ", ".join(dict.fromkeys(sample.name for sample in samples))
    return "ok", f"{plural(len(samples), 'GPU')} ({kinds})"


def _ras() -> Outcome:
    address = parse_address(os.environ.get("NCCL_RAS_ADDR"))
    answer = ask_ras(address, limit=4.0)
    where = f"{address[0]}:{address[1]}"
    if isinstance(answer, str):
        return "off", answer, "answers while an NCCL job (2.24 or later) runs here"
    known = plural(answer.communicators, "communicator")
    return "ok", f"NCCL {answer.version or '?'} on {where}, {known}"
