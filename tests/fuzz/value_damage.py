"""Damage to what JSON and pickles hold: other types, sizes, depths and texts."""

from __future__ import annotations

import copy
import json
import pickle
import random
import struct
from collections.abc import Callable
from typing import Any

from benchmarks.runners.dumps import pickled
from tests.fuzz.byte_damage import edit
from tests.fuzz.inputs import BaseInput, Input

__all__ = ["change_value", "damage_json", "damage_lines", "damage_pickle", "spell"]

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 255, 1 << 16, 1 << 31, (1 << 62) - 1, 1 << 62, 1 << 63),
    *((1 << 64) - 1, 1 << 64, -(1 << 63), -(1 << 63) - 1, 1 << 200, 0.5, -0.0, 1e308),
    *(float("inf"), float("nan"), "", "0", "-1", "1e9", "x" * 5000, "\x1b[31mred", "a\nb\r\tc"),
    *("\u202ertl", "\ud800", "\0", "../../x", "%s%n{0}", [], {}, [[]], [{}], {"": {}}, [None]),
    *([0] * 300, ["x"] * 300, {"a": [1, {"b": 2}]}, [[1, 2], [3, 4]], "[0,1,2", "{}", "NaN"),
)
_DEPTHS = (3, 50, 400, 3000)


def change_value(dice: random.Random, value: Any) -> Any:
    """Return a value with something in it changed; what is changed may be the value itself."""
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        holder = [value]
        container, key = _descend(dice, holder)
        dice.choice(_CHANGES)(dice, container, key)
        value = holder[0] if holder else None
    return value


def spell(value: Any) -> bytes:
    """Return JSON, in ASCII, of whatever it can be made of."""
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except RecursionError:
        depth = 5000
        return b"[" * depth + b"]" * depth


def damage_json(dice: random.Random, base: BaseInput) -> Input:
    """Change a value in one of the JSON files."""
    names = [name for name in sorted(base.files.keys() - base.keep) if _is_json(name)]
    name = dice.choice(names)
    value = change_value(dice, json.loads(base.files[name]))
    return edit(name, base, "value", spell(value))


def _is_json(name: str) -> bool:
    return name.endswith(".json")


def damage_pickle(dice: random.Random, base: BaseInput) -> Input:
    """Change a value in a dump, and write it as torch does, or as JSON."""
    name = dice.choice(sorted(base.files.keys() - base.keep))
    value = change_value(dice, pickle.loads(base.files[name]))  # of our own making
    how = dice.choice(("as torch", "as torch", "protocol 2", "protocol 4", "JSON"))
    try:
        if how == "as torch":
            data = pickled(value)
        elif how == "JSON":
            data = spell(value)
        else:
            data = pickle.dumps(value, protocol=int(how[-1]))
    except (AttributeError, RecursionError, TypeError, ValueError, OverflowError, struct.error):
        data = spell(value)
    return edit(name, base, f"value, {how},", data)


def damage_lines(dice: random.Random, base: BaseInput) -> Input:
    """Change one line of a trace, or lose, repeat, move, tear or replace lines."""
    name = dice.choice(sorted(base.files.keys() - base.keep))
    lines = base.files[name].splitlines(keepends=True)
    place = dice.randrange(len(lines))
    change = dice.choice(("value", "value", "value", *_LINE_CHANGES))
    if change == "value":
        lines[place] = spell(change_value(dice, json.loads(lines[place]))) + b"\n"
    elif change == "lost":
        del lines[place]
    elif change == "repeated":
        lines[place:place] = [lines[place]] * dice.choice((1, 1, 3, 200))
    elif change == "moved":
        lines.insert(dice.randrange(len(lines)), lines.pop(place))
    elif change == "torn":
        lines[place] = lines[place][: dice.randrange(len(lines[place]))]
    elif change == "of another":
        other = base.files[dice.choice(sorted(base.files))].splitlines(keepends=True)
        lines[place] = dice.choice(other)
    else:
        lines.insert(place, dice.choice((b"\n", b"null\n", b"{}\n", b"\xff\xfe\n", b'{"a":\n')))
    return edit(name, base, f"line {change}", b"".join(lines))


_LINE_CHANGES = ("lost", "repeated", "moved", "torn", "of another", "inserted")


def _descend(dice: random.Random, value: Any) -> tuple[Any, Any]:
    """Return a container and a key in it, anywhere below a list of one value."""
    container, key = value, 0
    while isinstance(found := container[key], list | dict) and found and dice.random() < 0.9:
        container = found
        key = dice.choice(list(found)) if isinstance(found, dict) else dice.randrange(len(found))
    return container, key


def _replace(dice: random.Random, container: Any, key: Any) -> None:
    container[key] = copy.deepcopy(dice.choice(HOSTILE))


def _lose(dice: random.Random, container: Any, key: Any) -> None:
    del container[key]


def _repeat(dice: random.Random, container: Any, key: Any) -> None:
    if isinstance(container, dict):
        container[dice.choice(("", "x", f"{key}{key}", "rank"))] = container[key]
    else:
        container[key:key] = [container[key]] * dice.choice((1, 1, 2, 300))


def _swap(dice: random.Random, container: Any, key: Any) -> None:
    keys = list(container) if isinstance(container, dict) else list(range(len(container)))
    other = dice.choice(keys)
    container[key], container[other] = container[other], container[key]


def _wrap(dice: random.Random, container: Any, key: Any) -> None:
    value = container[key]
    for _ in range(dice.choice(_DEPTHS)):
        value = [value] if dice.random() < 0.5 else {"a": value}
    container[key] = value


def _nudge(dice: random.Random, container: Any, key: Any) -> None:
    """Change a number or a text by a little, and anything else wholly."""
    value = container[key]
    if isinstance(value, bool) or not isinstance(value, int | str):
        _replace(dice, container, key)
    elif isinstance(value, int):
        container[key] = dice.choice((value + 1, value - 1, -value, value << 8, value * 1.5))
    else:
        place = dice.randrange(len(value) + 1)
        letter = dice.choice(("", "\0", "\x1b[2J", "\ud800", "9", "x", "/", ":", "ü", "\n"))
        container[key] = value[:place] + letter + value[place + dice.choice((0, 1)) :]


_CHANGES: tuple[Callable[[random.Random, Any, Any], None], ...] = (
    *(_replace, _replace, _replace, _lose, _repeat, _swap, _wrap, _nudge, _nudge),
)
