"""A communicator of the recording process, with its cache of packed call parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

from ncclscope.ring.channel import Channel

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
