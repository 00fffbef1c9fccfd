"""Baselines of ``check``, which people edit and merges take apart."""

from __future__ import annotations

import os
import random
from pathlib import Path

from ncclscope.parity.formats import github, junit
from ncclscope.parity.lockfile import read_baseline, render_baseline
from ncclscope.parity.report import check_run
from ncclscope.parity.sequence import Vocabulary
from ncclscope.readers import open_run
from ncclscope.render.console.parity import render_report
from tests.fuzz.byte_damage import damage_bytes, edit
from tests.fuzz.inputs import Answer, BaseInput, Input, Surface
from tests.fuzz.jobs import ring_base_inputs
from tests.fuzz.oracles import printable_texts, shows_controls

__all__ = ["Baselines"]

_NAME = "calls.lock"
_CHECKED = 16
"""One input in this many is compared with a run; the others are only read."""
_TEXT = b"""\
# What each rank posts, in order. Made by `ncclscope check --update`, to be reviewed.
ncclscope baseline 1
shapes exact

section  # ranks 0-2
  tp all_reduce sum [10,2] float32
  repeat 3
    tp all_reduce sum [11,2] float32
    repeat 2
      dp broadcast [4,2] int64 root 0
  tp all_gatherv [1,2] float32 sizes 1,2,3

section
  tp all_reduce sum [12,2] float32
"""
_LINES: tuple[str, ...] = (
    "  repeat 999999999",
    "  repeat 40000",
    "  repeat 0",
    "section",
    "shapes ignored",
    "\t\tx",
)
_LINES += ("# only a remark", "  repeat 2", "   x", "ncclscope baseline 2", "  \x1b[31mred", "\x0c")


class Baselines(Surface):
    """Baselines with lines that are changed, lost, moved or indented."""

    def __init__(self, home: Path) -> None:
        bases = [BaseInput("baseline", {_NAME: _TEXT})]
        damages = (_damage_lines, _damage_lines, _damage_lines, damage_bytes)
        super().__init__("baselines", bases, damages)
        self._home = home / self.name
        self._job = next(one for one in ring_base_inputs() if one.name == "sends")

    def judge(self, given: Input, seed: int) -> Answer:
        room = self._home / str(os.getpid())
        if not room.is_dir():
            (room / "rings").mkdir(parents=True)
            for name, data in self._job.files.items():
                (room / "rings" / name).write_bytes(data)
        path = room / _NAME
        path.write_bytes(given.files[_NAME])
        words = Vocabulary()
        baseline = read_baseline(path, words)
        if odd := printable_texts(words.texts):
            return Answer("control byte", odd)
        if seed % _CHECKED:
            return Answer("read")
        render_baseline(baseline.sections, words, shapes=baseline.shapes)
        report = check_run(open_run(room / "rings"), path)
        report.to_dict()
        junit(report, "", "")
        github(report)
        if shown := shows_controls(render_report(report, 100)):
            return Answer("control byte", shown)
        return Answer(report.outcome)


def _damage_lines(dice: random.Random, base: BaseInput) -> Input:
    lines = base.files[_NAME].decode().split("\n")
    for _ in range(dice.choice((1, 1, 2, 5))):
        place = dice.randrange(len(lines))
        line = lines[place]
        change = dice.choice(("lose", "repeat", "indent", "move", "insert", "nest"))
        if change == "lose" and len(lines) > 1:
            del lines[place]
        elif change == "repeat":
            lines[place:place] = [line] * dice.choice((1, 3, 500))
        elif change == "indent":
            lines[place] = " " * dice.choice((1, 2, 4, 90)) + line
        elif change == "move":
            lines.insert(dice.randrange(len(lines)), lines.pop(place))
        elif change == "nest":
            # Each level doubles the calls: those between would take a second each.
            depth = dice.choice((2, 10, 15, 65, 200)) if dice.random() < 0.95 else 64
            nested = [" " * (2 + level) + "repeat 2" for level in range(depth)]
            lines[place:place] = [*nested, " " * (depth + 3) + "x"]
        else:
            lines.insert(place, dice.choice(_LINES))
    return edit(_NAME, base, "lines", "\n".join(lines).encode())
