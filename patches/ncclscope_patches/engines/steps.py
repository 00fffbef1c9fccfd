"""The base of patches that record the steps of an engine."""

from __future__ import annotations

from collections.abc import Callable

from ncclscope.tracing import session
from ncclscope_patches.probes.probe import Note


class StepPatch(Note):
    """Records where a step of an engine begins: the calls that follow belong to it."""

    def __init__(self) -> None:
        super().__init__()
        self._number = 0
        self._post: Callable[[int, int | None, bool], int] | None = None
        session.on_reset(self._forget)

    def _next(self, tokens: int | None, dummy: bool = False) -> bool:
        """Record the step after the last one; steps are numbered from 1.

        Args:
            tokens: Tokens of the step; None if the engine does not say.
            dummy: Whether the rank takes part only because its peers need it.

        Returns:
            Whether tracing is on.
        """
        post = self._post or self._open()
        if post is None:
            return False
        post(self._number + 1, tokens, dummy)
        self._number += 1
        return True

    def _begin(self, number: int, tokens: int | None, dummy: bool = False) -> bool:
        """Record a step by the engine's own number, and return whether tracing is on."""
        post = self._post or self._open()
        if post is None:
            return False
        post(number, tokens, dummy)
        return True

    def _open(self) -> Callable[[int, int | None, bool], int] | None:
        tracer = session.current()
        self._post = None if tracer is None else tracer.ring.post_step
        return self._post

    def _forget(self) -> None:
        self._post = None
