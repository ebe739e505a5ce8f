"""Charts as SVG, in as few lines as will do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

WIDTH, HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 40, 82, 56
_GRID, _INK = "#e3e6ea", "#3b4252"

#: Colours that are told apart by everybody, ours first.
COLOURS = ("#0b6fa4", "#d1495b", "#7a8b99", "#e3a02b", "#4c956c")

Point = tuple[float, float]


class Axis:
    """One axis.

    Parameters:
        title: what it shows, with the unit.
        low, high: its ends.
        log: by powers of ten.
    """

    def __init__(self, title: str, low: float, high: float, *, log: bool = False) -> None:
        self.title = title
        self._bend: Callable[[float], float] = math.log10 if log else float
        self._low, self._high, self._log = low, high, log

    def place(self, value: float) -> float:
        """Where on the axis a value lies, from 0 to 1."""
        low, high = self._bend(self._low), self._bend(self._high)
        return min(max((self._bend(value) - low) / (high - low), 0), 1)

    def ticks(self) -> list[float]:
        """Round values to write at the axis."""
        if self._log:
            return [10.0**power for power in range(round(math.log10(self._low)), round(math.log10(self._high)) + 1)]
        step = _round_step((self._high - self._low) / 6)
        return [self._low + number * step for number in range(int((self._high - self._low) / step + 1e-9) + 1)]


class Chart:
    """A chart with two axes, lines and dots.

    Parameters:
        title: stands above it.
        x, y: the axes.
    """

    def __init__(self, title: str, x: Axis, y: Axis) -> None:
        self._x, self._y = x, y
        self._marks: list[str] = []
        self._legend: list[tuple[str, str]] = []
        self._title = title

    def line(
        self, label: str, points: Sequence[Point], colour: str, *, dots: bool = True, dashed: bool = False
    ) -> None:
        """Draw a line through these points, and name it in the legend."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(self._at, points))
        dash = ' stroke-dasharray="5 5"' if dashed else ""
        self._marks.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.2"{dash}/>')
        if dots:
            self.dots(points, colour)
        self._legend.append((label, colour))

    def dots(self, points: Sequence[Point], colour: str, label: str = "") -> None:
        """Draw dots; name them in the legend if they have a name."""
        for x, y in map(self._at, points):
            self._marks.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}" fill-opacity="0.85"/>')
        if label:
            self._legend.append((label, colour))

    def text(self, x: float, y: float, words: str, colour: str = _INK) -> None:
        """Write something above a point."""
        left, top = self._at((x, y))
        self._marks.append(_text(left, top - 9, words, colour, "middle"))

    def svg(self) -> str:
        """The whole chart."""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'font-family="system-ui, sans-serif" font-size="13" role="img" aria-label="{escape(self._title)}">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            f'<text x="{_LEFT}" y="22" fill="{_INK}" font-size="15" font-weight="600">{escape(self._title)}</text>',
            *self._axes(),
            *self._marks,
            *self._names(),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _at(self, point: Point) -> Point:
        x = _LEFT + self._x.place(point[0]) * (WIDTH - _LEFT - _RIGHT)
        y = HEIGHT - _BOTTOM - self._y.place(point[1]) * (HEIGHT - _TOP - _BOTTOM)
        return x, y

    def _axes(self) -> list[str]:
        bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
        parts = []
        for value in self._y.ticks():
            y = bottom - self._y.place(value) * (bottom - _TOP)
            parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{_GRID}"/>')
            parts.append(_text(_LEFT - 8, y + 4, _label(value), _INK, "end"))
        for value in self._x.ticks():
            x = _LEFT + self._x.place(value) * (right - _LEFT)
            parts.append(f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 5}" stroke="{_INK}"/>')
            parts.append(_text(x, bottom + 20, _label(value), _INK, "middle"))
        parts.append(f'<line x1="{_LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}" stroke="{_INK}"/>')
        parts.append(_text((_LEFT + right) / 2, HEIGHT - 14, self._x.title, _INK, "middle"))
        parts.append(f'<g transform="rotate(-90 18 {HEIGHT / 2})">')
        parts.append(_text(18, HEIGHT / 2, self._y.title, _INK, "middle") + "</g>")
        return parts

    def _names(self) -> list[str]:
        parts: list[str] = []
        x, y = float(_LEFT), 46
        for label, colour in self._legend:
            width = 34 + 6.9 * len(label)
            if x + width > WIDTH:
                x, y = float(_LEFT), y + 19
            parts.append(f'<rect x="{x:.0f}" y="{y - 7}" width="12" height="4" fill="{colour}"/>')
            parts.append(_text(x + 17, y, label, _INK, "start"))
            x += width
        return parts


def _text(x: float, y: float, words: str, colour: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{escape(words)}</text>'


def _label(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or float(value).is_integer() else f"{value:g}"


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough)
