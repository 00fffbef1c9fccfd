"""Layout of the wait-for graph: boxes in layers, arrows from waiting ranks to awaited ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ncclscope.engine.waits.wait_groups import Link, WaitGroup, WaitPicture
from ncclscope.model.ties import grouped
from ncclscope.wording.names import call_text, ranks_text

BOX = (212, 66)
"""Width and height of a box in pixels."""
GAP = (28, 64)
"""Horizontal and vertical distance between boxes in pixels."""
MARGIN = 14
LETTERS, BOLD_LETTERS = 32, 26
"""Characters that fit into a line of a box."""

Point = tuple[float, float]
"""x and y in pixels, from the upper left corner."""


def draw_graph(picture: WaitPicture) -> dict[str, Any] | None:
    """Lay out the wait-for graph.

    Returns:
        Size, boxes and arrows in pixels; None if no rank waits for another.
    """
    if not picture.links:
        return None
    corners, width, height = _corners(picture.places)
    boxes = [
        {
            "x": corners[number][0],
            "y": corners[number][1],
            "width": BOX[0],
            "height": BOX[1],
            "diverging": place.odd,
            "lines": _lines(place),
            "title": _title(place),
        }
        for number, place in enumerate(picture.places)
    ]
    return {
        "width": width,
        "height": height,
        "boxes": boxes,
        "arrows": [_arrow(link, corners) for link in picture.links],
        "sentences": [_sentence(link, picture.places) for link in picture.links],
        "kinds": sorted({link.kind for link in picture.links}),
        "cycle": ranks_text(picture.cycle) if picture.cycle else "",
    }


def _corners(places: Sequence[WaitGroup]) -> tuple[list[Point], float, float]:
    """Return the corner of each box, and the width and height of the graph, in pixels.

    Layers run from top to bottom: ranks that wait for nobody first, deadlock cycles last.
    """
    depths = [math.inf if place.depth is None else place.depth for place in places]
    layers = grouped(range(len(places)), lambda number: depths[number])
    widest = max(len(layer) for layer in layers.values())
    columns = min(widest, 2 if len(places) <= 8 else 4)
    width = 2 * MARGIN + columns * BOX[0] + (columns - 1) * GAP[0]
    corners: list[Point] = [(0, 0)] * len(places)
    y: float = MARGIN
    for depth in sorted(layers):
        layer = layers[depth]
        for start in range(0, len(layer), columns):
            row = layer[start : start + columns]
            span = len(row) * BOX[0] + (len(row) - 1) * GAP[0]
            for place_in_row, number in enumerate(row):
                corners[number] = ((width - span) / 2 + place_in_row * (BOX[0] + GAP[0]), y)
            y += BOX[1] + GAP[1]
    return corners, width, y - GAP[1] + MARGIN


def _arrow(link: Link, corners: Sequence[Point]) -> dict[str, Any]:
    """Return an SVG path between the facing sides of two boxes."""
    (x1, y1), (x2, y2) = corners[link.source], corners[link.target]
    wide, high = BOX
    if y1 == y2:  # in the same row
        right = x2 > x1
        start = (x1 + (wide if right else 0), y1 + high / 2 + (8 if right else -8))
        end = (x2 + (0 if right else wide), start[1])
        path = f"M{start[0]:.0f} {start[1]:.0f}L{end[0]:.0f} {end[1]:.0f}"
    else:
        up = y2 < y1
        # Shift the arrows, so that those of two ranks that wait for each other do not overlap.
        shift = -14 if up else 14
        start = (x1 + wide / 2 + shift, y1 + (0 if up else high))
        end = (x2 + wide / 2 + shift, y2 + (high if up else 0))
        bend = GAP[1] * 0.6 * (-1 if up else 1)
        path = (
            f"M{start[0]:.0f} {start[1]:.0f}C{start[0]:.0f} {start[1] + bend:.0f} "
            f"{end[0]:.0f} {end[1] - bend:.0f} {end[0]:.0f} {end[1]:.0f}"
        )
    return {"path": path, "kind": link.kind}


def _lines(place: WaitGroup) -> list[str]:
    name = ranks_text(place.ranks)
    if len(name) > BOLD_LETTERS:
        name = _cut(f"{len(place.ranks)} {name.replace(' ', ': ', 1)}", BOLD_LETTERS)
    lines = [name]
    if place.call is not None and place.comm is not None:
        where = place.comm.kind if place.alike else place.comm.label or place.comm.key[:12]
        number = "" if place.alike else f"#{place.call.seq} "
        lines += [f"{number}{place.call.op}", f"on {where}" + (" groups" if place.alike else "")]
        if place.note:
            lines[-1] += f"; {place.note}"
    elif place.note:
        lines.append(place.note)
    return [_cut(line) for line in lines]


def _title(place: WaitGroup) -> str:
    text = ranks_text(place.ranks)
    if place.call is not None:
        text += f": #{place.call.seq} {call_text(place.call)}"
    return f"{text}; {place.note}" if place.note else text


def _sentence(link: Link, places: Sequence[WaitGroup]) -> str:
    one, other = ranks_text(places[link.source].ranks), ranks_text(places[link.target].ranks)
    return {
        "absent": f"{one} → {other}: has not posted the call",
        "queued": f"{one} → {other}: has posted the call, but an earlier one is pending",
        "unlike": f"{one} → {other}: has posted another call under the same number",
    }[link.kind]


def _cut(text: str, most: int = LETTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
