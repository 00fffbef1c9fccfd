"""Note waits at torch's stores: for which key, since when.

Ranks find each other by keys in a store. A rank that never comes leaves its peers in ``get`` or
``wait`` for a key of its own, and nothing else of them shows which one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ncclscope.clock import now_ns
from ncclscope.model.activities import AGAIN_NS, STORE_PLACE, STORE_SET, STORE_WAIT
from ncclscope.tracing.notes import Notes, Phase, leave
from ncclscope_patches.probes.probe import Note

_BLOCKING = ("get", "wait", "multi_get", "barrier", "queue_pop")
_SETTING = ("set", "add", "compare_set")
_TCP_STORE = ("host_name", "port", "world_size", "is_master", "timeout")


class StoreNote(Note):
    """Notes blocking calls on stores, the newest key that the process has set, and connecting."""

    name = "store"
    target = "torch.distributed.distributed_c10d"

    def __init__(self) -> None:
        super().__init__()
        self._waits, self._sets = Notes(STORE_WAIT), Notes(STORE_SET)
        self._places = Notes(STORE_PLACE)
        self._last: tuple[str, int, int] = "", 0, 0
        """What was waited for last, since when, and until when."""

    def install(self, module: Any) -> None:
        store = module.Store
        for name in _BLOCKING:
            if (function := getattr(store, name, None)) is not None:
                self.put(store, name, self.guard_scope(function, self._enter(name), self._leave))
        for name in _SETTING:
            self.replace(store, name, self._set)
        library = sys.modules.get("torch._C._distributed_c10d")
        if (tcp := getattr(library, "TCPStore", None)) is not None:
            connect = self.guard_scope(tcp.__init__, self._connect, self._leave)
            self.put(tcp, "__init__", connect)

    def _enter(self, name: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Phase | None]:
        def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Phase | None:
            given = [*args[1:], *kwargs.values()]
            key = _key(given[0]) if given else ""
            limit = next((one for one in given[1:] if isinstance(one, timedelta)), None)
            seconds = (args[0].timeout if limit is None else limit).total_seconds()
            return self._begin(f"{name} {key}", seconds)

        return enter

    def _connect(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Phase | None:
        given = dict(zip(_TCP_STORE, args[1:], strict=False)) | kwargs
        verb = "serve" if given.get("is_master") else "connect"
        limit = given.get("timeout")
        seconds = limit.total_seconds() if isinstance(limit, timedelta) else 0.0
        place = f"{given.get('host_name')}:{given.get('port')}"
        self._places.note(place, "")
        return self._begin(f"{verb} {place}", seconds)

    def _begin(self, text: str, seconds: float) -> Phase | None:
        last, since, until = self._last
        now = now_ns()
        # torch itself waits in slices of ten seconds, and logs in between.
        began = since if last == text and now - until < AGAIN_NS else now
        self._last = text, began, now
        return self._waits.begin(text, text.partition(" ")[0], int(seconds), began)

    def _leave(self, wait: Phase) -> None:
        leave(wait)
        self._last = *self._last[:2], now_ns()

    def _set(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._sets.note(_key(args[1] if len(args) > 1 else kwargs.get("key")), "a key")


def _key(given: Any) -> str:
    """Return a key, or the first of several and how many more there are."""
    if isinstance(given, (list, tuple)):
        more = f" (+{len(given) - 1})" if len(given) > 1 else ""
        return f"{given[0]}{more}" if given else ""
    return str(given)
