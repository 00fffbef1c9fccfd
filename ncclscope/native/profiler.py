"""Put NCCL's profiler plugin into the environment of processes that record.

NCCL loads one plugin, which NCCL_PROFILER_PLUGIN names. The plugin that was configured before moves
to NCCLSCOPE_NEXT_PROFILER, and ours passes everything on to it.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from pathlib import Path

from ncclscope import native

SLOT = "NCCL_PROFILER_PLUGIN"
_NEXT = ("NCCLSCOPE_NEXT_PROFILER", "NCCL_SCOPE_NEXT_PROFILER")
_NAMES = ("ncclscope-profiler.so", "libnccl-profiler-ncclscope.so")
"""File names of the plugin: today's, and one by which NCCL would find it without a path."""


def is_ours(named: str) -> bool:
    """Return whether a value of NCCL_PROFILER_PLUGIN names our plugin, of any installation."""
    return Path(named).name in _NAMES or named == "ncclscope"


def next_plugin(environment: Mapping[str, str]) -> str:
    """Return the plugin that ours passes events on to; empty if none is named."""
    return next((named for name in _NEXT if (named := environment.get(name))), "")


def added_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make NCCL load our plugin; none if it was not built.

    NCCL_PROFILER_PLUGIN=none is left as it is: then NCCL is to load no plugin at all.
    """
    plugin = native.plugin_path()
    configured = environment.get(SLOT, "")
    if plugin is None or native.why_not() or configured.lower() == "none":
        return {}
    added = {SLOT: str(plugin)}
    if configured and not is_ours(configured):
        added |= dict.fromkeys(_NEXT, configured)
    return added


def arrange(environment: MutableMapping[str, str]) -> None:
    """Make NCCL load our plugin in this process, or not load one that this Python cannot use.

    The writer in Python and the plugin know nothing of each other, so each would record the calls.
    """
    if native.core() is not None:
        environment.update(added_variables(environment))
    elif is_ours(environment.get(SLOT, "")):
        if behind := next_plugin(environment):
            environment[SLOT] = behind
        else:
            del environment[SLOT]
