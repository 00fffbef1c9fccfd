"""Sentences with a code, and slots for ranks, calls, communicators and numbers."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from string import Formatter

from ncclscope.model import Call, Communicator
from ncclscope.wording.names import call_text, comm_text, placed, ranks_text, sentence

_SINGULAR = {
    "are": "is",
    "do": "does",
    "have": "has",
    "their": "its",
    "them": "it",
    "They": "It",
    "they": "it",
    "they are": "it is",
    "were": "was",
}


class Phrase(Enum):
    """A code whose value is its wording.

    A slot spells out its value: ``{}`` is ``ranks 2 3``, a call or a communicator. ``{:^}`` begins
    a sentence with it, and ``{:@}`` is a call with its line. For ranks, ``{:wait}`` is that word,
    or ``waits`` for a single one.
    """

    def of(self, *values: object, **named: object) -> str:
        """Return the wording with these values in its slots."""
        return _SPELLER.vformat(str(self.value), values, named)

    def __str__(self) -> str:
        return str(self.value)


class _Speller(Formatter):
    def format_field(self, value: object, format_spec: str) -> str:
        if format_spec == "^":
            return sentence(self.format_field(value, ""))
        if isinstance(value, Call):
            return placed(value) if format_spec == "@" else call_text(value)
        if isinstance(value, Communicator):
            return comm_text(value)
        if not isinstance(value, Collection) or isinstance(value, str):
            return format(value, format_spec)
        if not format_spec:
            return ranks_text(value)
        return _SINGULAR.get(format_spec, f"{format_spec}s") if len(value) == 1 else format_spec


_SPELLER = _Speller()
