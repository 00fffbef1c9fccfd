"""State of the live view that the user controls: panes, and the picked rank or communicator."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

_LISTS = ("ranks", "comms")


@dataclass
class Board:
    """Handles keys; knows only names and sizes of what is shown.

    Attributes:
        upper: Upper list: ``ranks`` or ``comms``.
        lower: Lower pane: ``calls``, ``divergence``, ``log`` or ``help``.
        picked: By list, the name of the picked entry; absent for the first.
        top: By list, the index of the first line shown.
        scroll: Lines by which the lower pane is scrolled: back from the newest in the calls and
            the log, down from the first in the others.
        is_full: Whether the lower pane takes the whole screen.
        worst_first: Whether entries with a mark are listed first.
        typed: Digits of a rank typed so far.
        has_quit: Whether the user has quit.
    """

    upper: str = "ranks"
    lower: str = "calls"
    picked: dict[str, Hashable] = field(default_factory=dict)
    top: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_LISTS, 0))
    scroll: int = 0
    is_full: bool = False
    worst_first: bool = False
    typed: str = ""
    has_quit: bool = False

    def show(self, lower: str) -> None:
        """Open a lower pane, not scrolled."""
        self.lower, self.scroll = lower, 0

    def place(self, names: Sequence[Hashable]) -> int:
        """Return the index of the picked entry in the upper list; 0 if it is gone."""
        picked = self.picked.get(self.upper)
        return names.index(picked) if picked in names else 0

    def press(
        self,
        key: str,
        names: Sequence[Hashable],
        numbers: Sequence[str],
        marked: Sequence[bool],
        pages: tuple[int, int],
    ) -> None:
        """Handle a key.

        Args:
            key: Name of the key, or its letter.
            names: Names of the entries of the upper list, in order.
            numbers: By entry, the digits that pick it; empty for none.
            marked: By entry, whether it has a mark.
            pages: Heights of the upper and of the lower pane in lines.
        """
        if key.isdecimal() and len(key) == 1 and self.upper == "ranks":
            self._type(key, names, numbers)
            return
        self.typed = ""
        if key in _MOVES:
            self._move(key, names, pages[0])
        elif key in _SCROLLS:
            step = _SCROLLS[key] * max(1, pages[1] - 1)
            back = self.lower in ("calls", "log")
            self.scroll = max(0, self.scroll + (-step if back else step))
        elif key in _PANES:
            self.show(_PANES[key])
        elif key in ("tab", "back tab", "left", "right", "r", "c"):
            other = "comms" if self.upper == "ranks" else "ranks"
            self.upper = {"r": "ranks", "c": "comms"}.get(key, other)
            self.scroll = 0
        elif key == "n" and any(marked):
            start = self.place(names) + 1
            turned = [*range(start, len(names)), *range(start)]
            self._pick(names, next(place for place in turned if marked[place]))
        elif key == "s":
            self.worst_first = not self.worst_first
            self.picked.pop(self.upper, None)  # pick the entry that is first now
        elif key == "f":
            self.is_full = not self.is_full
        elif key == "escape":
            self.is_full = False
            self.show("calls")
        elif key in ("q", "Q"):
            self.has_quit = True

    def _type(self, digit: str, names: Sequence[Hashable], numbers: Sequence[str]) -> None:
        self.typed = (self.typed + digit)[-7:]
        if self.typed not in numbers:
            # No rank has this number: the digit may begin another.
            self.typed = self.typed if any(n.startswith(self.typed) for n in numbers) else digit
        if self.typed in numbers:
            self._pick(names, numbers.index(self.typed))

    def _move(self, key: str, names: Sequence[Hashable], page: int) -> None:
        if not names:
            return
        at = self.place(names)
        step = _MOVES[key]
        if key.startswith("page"):
            step *= max(1, page - 1)
        self._pick(names, min(max(at + step, 0), len(names) - 1))

    def _pick(self, names: Sequence[Hashable], place: int) -> None:
        self.picked[self.upper] = names[place]
        if self.lower == "calls":
            self.scroll = 0


_FAR = 1 << 30
_MOVES = {
    "up": -1,
    "k": -1,
    "down": 1,
    "j": 1,
    "page up": -1,
    "page down": 1,
    "home": -_FAR,
    "g": -_FAR,
    "end": _FAR,
    "G": _FAR,
}
_SCROLLS = {"space": 1, "b": -1}
_PANES = {"enter": "calls", "d": "divergence", "l": "log", "?": "help", "h": "help"}
