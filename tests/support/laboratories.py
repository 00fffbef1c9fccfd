"""Laboratories whose ranks are forks of a process that tests share, which has imported torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from ncclscope.launch import fork_server as lab_server
from tests.support import fork_server

__all__ = ["warm_laboratories"]


@contextmanager
def warm_laboratories() -> Iterator[None]:
    """Let laboratories import torch once for all; tests of their start do without it."""
    forks = SimpleNamespace(Popen=fork_server.Popen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab_server, "subprocess", forks)
        yield
