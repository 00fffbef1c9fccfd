"""The communicators of the recording process, with their caches of packed call parameters."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ncclscope.ring import layout
from ncclscope.ring.channel import Channel
from ncclscope.ring.writer import RingWriter

_TEMPLATES_KEPT = 4096


class Template(NamedTuple):
    """Packed parameters and signature, shared by calls with the same parameters."""

    fixed: bytes
    signature: int


class NamelessTemplate(Template):
    """A template for one use only: a signal handler interrupted the write of one of its texts."""


class Comm:
    """A communicator of this process; created by :meth:`Tracer.communicator`.

    Attributes:
        templates: The probes' cache: template by any key that identifies a call's parameters.

    Args:
        channel: Its place in the ring.
        key: Key, equal on all its members.
        label: Its name for a reader, such as ``tp:0``.
        ranks: Global ranks of its members.
        backend: Its backend, such as ``nccl``.
    """

    __slots__ = ("__weakref__", "backend", "channel", "key", "label", "ranks", "templates")

    def __init__(
        self, channel: Channel, key: str, label: str, ranks: tuple[int, ...], backend: str
    ) -> None:
        self.channel = channel
        self.key = key
        self.label = label
        self.ranks = ranks
        self.backend = backend
        self.templates: dict[Any, Template] = {}

    def __repr__(self) -> str:
        return f"Comm(key={self.key!r}, label={self.label!r}, ranks={self.ranks!r})"


def keep(comm: Comm, parameters: Any, template: Template) -> None:
    """Cache a template for later calls, within a limit.

    Args:
        comm: The communicator.
        parameters: Key that identifies the call's parameters.
        template: The template.
    """
    if isinstance(template, NamelessTemplate):
        return  # the next call with these parameters will have its name
    if len(comm.templates) >= _TEMPLATES_KEPT:
        comm.templates.clear()
    comm.templates[parameters] = template


class Comms:
    """The communicators of one ring, by key.

    A ring holds a limited number at one time. So one that the program no longer holds gives its
    number to a later one. If its key is used again before that, it goes on where it was.
    Callers serialise :meth:`open`.

    Args:
        ring: The ring.
        without_room: Receives the key and the label of each communicator that finds no room.
    """

    def __init__(self, ring: RingWriter, without_room: Callable[[str, str], None]) -> None:
        self._ring = ring
        self._without_room = without_room
        self._live: weakref.WeakValueDictionary[str, Comm] = weakref.WeakValueDictionary()
        self._watched: dict[str, weakref.ref[Comm]] = {}
        self._channels: dict[str, Channel] = {}
        self._keys: dict[int, str] = {}
        self._gone: deque[str] = deque()
        self.keeps_all = False
        """Whether numbers are never used again, as where a GPU counts calls by them."""

    def get(self, key: str) -> Comm | None:
        """Return the communicator with this key; None if it has none, or no longer has it."""
        comm = self._live.get(key)
        return comm if comm is not None and comm.channel.index else None

    def open(self, key: str, label: str, about: Mapping[str, Any], ranks: tuple[int, ...]) -> Comm:
        """Return a communicator that was not found by :meth:`get`.

        Args:
            key: Its key.
            label: Its label.
            about: Its description for the ring.
            ranks: Global ranks of its members.
        """
        self._close_gone()
        channel = self._channels.get(key)
        if channel is not None and channel.index:
            self._ring.reopen_channel(channel)
        else:
            channel = self._ring.channel(about)
            self._note(key, label, channel)
        comm = Comm(channel, key, label, ranks, str(about.get("backend", "")))
        self._live[key] = comm
        # Called wherever the garbage collector runs, so it only notes the key.
        self._watched[key] = weakref.ref(comm, partial(_note_gone, self._gone, key))
        return comm

    def _note(self, key: str, label: str, channel: Channel) -> None:
        if not channel.index:
            self._without_room(key, label)
            return
        before = self._keys.get(channel.index)
        if before is not None and before != key:
            self._channels.pop(before, None)
            self._watched.pop(before, None)
        self._channels[key], self._keys[channel.index] = channel, key

    def _close_gone(self) -> None:
        while self._gone and not self.keeps_all:
            key = self._gone.popleft()
            channel = self._channels.get(key)
            if channel is not None and self._live.get(key) is None:
                self._ring.close_channel(channel)


def _note_gone(gone: deque[str], key: str, _reference: object) -> None:
    gone.append(key)


def describe(
    key: str, label: str, ranks: Sequence[int], backend: str, created_at: str | None, timeout: int
) -> dict[str, Any]:
    """Return the description of a communicator for the ring.

    Args:
        key: Its key.
        label: Its label.
        ranks: Global ranks of its members.
        backend: Its backend.
        created_at: Line of the program that created it.
        timeout: Seconds after which a call on it is given up; 0 if unknown.
    """
    about: dict[str, Any] = {
        "key": key,
        "label": label,
        **layout.spell_members(ranks),
        "backend": backend,
    }
    if created_at:
        about["created_at"] = created_at
    if timeout:
        about["timeout"] = timeout
    return about
