"""What vLLM calls in each of its processes, through the group ``vllm.general_plugins``."""

from __future__ import annotations

import sys

__all__ = ["register"]


def register() -> None:
    """Installs the patches where ``NCCLSCOPE_DIR`` is set; else does nothing.

    vLLM does not guard the call: an exception here would end the process.
    """
    try:
        from ncclscope.tracing import session

        if session.enabled():
            from ncclscope_patches import registry

            registry.install_all()
    except Exception as error:
        print(f"ncclscope: tracing is off in this process: {error!r}", file=sys.stderr)
