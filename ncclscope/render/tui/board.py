"""What the person in front of the screen has chosen: panes, a rank, a communicator."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

__all__ = ["Board"]

_LISTS = ("ranks", "comms")


@dataclass
class Board:
    """Answers keys; knows nothing of what is shown but its names and its size.

    Attributes:
        upper: ``ranks`` or ``comms``.
        lower: ``calls``, ``divergence``, ``log`` or ``help``.
        picked: By list, what is picked in it; None for the first.
        top: By list, the first line that is shown.
        scroll: Lines by which the lower pane is moved: of the calls and the log back from
            the newest, of the others down from the first.
        is_full: Whether the lower pane takes the whole screen.
        worst_first: Whether those that somebody should look at stand first.
        typed: Digits of a rank so far.
        has_quit: Whether that is the end.
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
        """Opens a lower pane at its beginning."""
        self.lower, self.scroll = lower, 0

    def place(self, names: Sequence[Hashable]) -> int:
        """Returns where the picked one stands in the upper list; 0 where it is gone."""
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
        """Answers a key.

        Args:
            key: Its name, or its letter.
            names: What stands in the upper list, in its order.
            numbers: What a person types to pick each of them; empty where that is nothing.
            marked: Which of them somebody should look at.
            pages: Lines of the upper and of the lower pane.
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
            self.picked.pop(self.upper, None)  # whoever stands first now
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
            # No such rank, or not yet: the digit may begin another.
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
