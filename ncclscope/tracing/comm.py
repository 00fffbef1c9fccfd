"""A communicator that a process records on, with what repeats from call to call."""

from __future__ import annotations

from typing import Any, NamedTuple

from ncclscope.ring.channel import Channel

__all__ = ["Comm", "NamelessTemplate", "Template", "keep"]

_TEMPLATES_KEPT = 4096


class Template(NamedTuple):
    """What repeats from call to call with the same parameters."""

    fixed: bytes
    signature: int


class NamelessTemplate(Template):
    """One to be used once: a signal handler came in while a text of it was being written."""


class Comm:
    """A communicator as this process records on it; made by :meth:`Tracer.communicator`.

    Attributes:
        templates: For the probes: whatever identifies a call's parameters -> Template.
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
    """Keep a template for the next call, and the table from growing without end."""
    if isinstance(template, NamelessTemplate):
        return  # the next call with these parameters will have its name
    if len(comm.templates) >= _TEMPLATES_KEPT:
        comm.templates.clear()
    comm.templates[parameters] = template
