"""The play as a picture: SVG, which browsers show and documents take in.

Three charts over one another: how many consumers are bound; how many partitions nobody reads at
that moment, and how many warm up; and how long partitions paused. The status of the queue is the
band above them, told apart by letters as well as by colours.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape

from broker.simulate.play import Played, Sample

WIDTH, HEIGHT = 720, 596
LEFT, RIGHT = 84, 24
INNER = WIDTH - LEFT - RIGHT
# Columns of the picture: of the moments within one, the highest counts.
COLUMNS = 500
STATUS = {
    "Ready": ("#d9efe0", "Ready"),
    "Holddown": ("#f6dd8c", "H"),
    "Rebalancing": ("#b9a3e3", "R"),
}
STYLE = """
text { font: 15px system-ui, sans-serif; fill: #1d2430 }
.small { font-size: 13px; fill: #4a5568 }
.title { font-size: 18px; font-weight: 600 }
.grid { stroke: #d5dae1; stroke-width: 1 }
.axis { stroke: #4a5568; stroke-width: 1 }
.flows { fill: none; stroke: #1f5fa8; stroke-width: 2 }
.paused { fill: #c2571a; fill-opacity: .75 }
.warming { fill: #3c8d5a; fill-opacity: .45 }
.bar { fill: #c2571a }
.step { stroke: #1d2430; stroke-width: 1; stroke-dasharray: 3 4 }
"""


def draw(played: Played, title: str, subtitle: str) -> str:
    """The picture as the text of an SVG document."""
    end = max(played.seconds, 1.0)
    columns = _columns(played.samples, end)

    def x(at: float) -> float:
        return LEFT + INNER * at / end

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(24, 32, title, "title"),
        _text(24, 54, subtitle, "small"),
        *_band(played.samples, end, x, 72),
        *_steps(played, x),
        _text(LEFT + INNER, 120, "H: holddown, R: rebalancing; dashed: steps", "small", "end"),
        *_line(columns, x, 132, 90),
        *_areas(columns, x, 262, 110, end),
        *_pauses(played, 446, 110),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _columns(samples: Sequence[Sample], end: float) -> list[tuple[float, int, int, int]]:
    """(time, flows, paused, warming) for each column of the picture; a value holds until the
    next."""
    found: list[tuple[float, int, int, int]] = []
    flows = paused = warming = place = 0
    for column in range(COLUMNS + 1):
        until = end * column / COLUMNS
        most_paused, most_warming = paused, warming
        while place < len(samples) and samples[place].at <= until:
            one = samples[place]
            flows, paused, warming = one.flows, one.paused, one.warming
            most_paused, most_warming = max(most_paused, paused), max(most_warming, warming)
            place += 1
        found.append((until, flows, most_paused, most_warming))
    return found


def _text(x: float, y: float, said: str, kind: str = "", anchor: str = "start") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{of_kind}>{escape(said)}</text>'


def _band(
    samples: Sequence[Sample], end: float, x: Callable[[float], float], top: float
) -> list[str]:
    """The status of the queue over time; very short ones are widened to be seen."""
    parts = []
    spans: list[tuple[str, float, float]] = []
    for one, after in zip(samples, [*samples[1:], None], strict=True):
        until = end if after is None else after.at
        if spans and spans[-1][0] == one.status:
            spans[-1] = (one.status, spans[-1][1], until)
        else:
            spans.append((one.status, one.at, until))
    for status, start, until in spans:
        colour, letter = STATUS[status]
        width = max(1.5, x(until) - x(start))
        parts.append(
            f'<rect x="{x(start):.1f}" y="{top}" width="{width:.1f}" height="20" fill="{colour}"/>'
        )
        if width > 9.0 * len(letter) + 4:
            middle = x(start) + width / 2
            parts.append(_text(middle, top + 15, letter, "small", "middle"))
    parts.append(_text(LEFT - 8, top + 15, "status", "small", "end"))
    return parts


def _steps(played: Played, x: Callable[[float], float]) -> list[str]:
    """A line for each step of the plan, through the band and the charts over time."""
    parts = []
    for phase in played.phases:
        at = x(phase.step.at)
        path = "".join(
            f"M{at:.1f},{top}V{bottom}" for top, bottom in ((72, 92), (132, 222), (262, 372))
        )
        parts.append(
            f'<path class="step" d="{path}"><title>{escape(phase.step.label)}</title></path>'
        )
    return parts


def _scale(most: int, top: float, height: float) -> tuple[float, list[str]]:
    """The highest value of an axis, and its lines with labels, which are whole numbers."""
    size = 10 ** max(0, math.floor(math.log10(max(most, 1))))
    highest = next(f * size for f in (1, 2, 4, 6, 8, 10) if f * size >= max(most, 1))
    parts = []
    for share in (0.0, 0.5, 1.0) if highest > 1 else (0.0, 1.0):
        y = top + height * (1 - share)
        label = f"{highest * share:,.0f}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{LEFT + INNER}" y1="{y}" y2="{y}"/>')
        parts.append(_text(LEFT - 8, y + 5, label, "small", "end"))
    return highest, parts


# Between two labels of the time axis, in seconds.
_TIME_STEPS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200)
MOST_TIMES = 7


def times(end: float) -> list[int]:
    """The labels of the time axis, in seconds: round ones from 0 up, at most `MOST_TIMES`."""
    fitting = (step for step in _TIME_STEPS if end / step < MOST_TIMES)
    step = next(fitting, 3600 * math.ceil(end / 3600 / (MOST_TIMES - 1)))
    return list(range(0, math.floor(end) + 1, step))


def _line(
    columns: Sequence[tuple[float, int, int, int]],
    x: Callable[[float], float],
    top: float,
    height: float,
) -> list[str]:
    highest, parts = _scale(max(column[1] for column in columns), top, height)
    path = ""
    for at, flows, _, _ in columns:
        y = top + height * (1 - flows / highest)
        path += f"H{x(at):.1f}V{y:.1f}" if path else f"M{x(at):.1f},{y:.1f}"
    parts.append(f'<path class="flows" d="{path}"/>')
    parts.append(_text(LEFT, top - 12, "consumers"))
    return parts


def _areas(
    columns: Sequence[tuple[float, int, int, int]],
    x: Callable[[float], float],
    top: float,
    height: float,
    end: float,
) -> list[str]:
    highest, parts = _scale(max(max(c[2], c[3]) for c in columns), top, height)
    for place, kind in ((3, "warming"), (2, "paused")):
        path = f"M{x(0.0):.1f},{top + height}"
        for column in columns:
            path += f"L{x(column[0]):.1f},{top + height * (1 - column[place] / highest):.1f}"
        parts.append(f'<path class="{kind}" d="{path}L{x(end):.1f},{top + height}Z"/>')
    warming = any(column[3] for column in columns)
    said = "partitions that nobody reads" + (" (green: warming up)" if warming else "")
    parts.append(_text(LEFT, top - 12, said))
    for at in times(end):
        parts.append(_text(x(at), top + height + 20, f"{at} s", "small", "middle"))
    return parts


# The upper ends of the bars in seconds; the last bar has all that is longer.
_BARS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


def _pauses(played: Played, top: float, height: float) -> list[str]:
    """How many partitions paused for how long, of all that moved."""
    counts: Counter[int] = Counter()
    for phase in played.phases:
        for seconds in phase.pauses:
            counts[sum(seconds > limit for limit in _BARS)] += 1
    highest, parts = _scale(max(counts.values(), default=1), top, height)
    wide = INNER / (len(_BARS) + 1)
    for place in range(len(_BARS) + 1):
        tall = height * counts[place] / highest
        left = LEFT + wide * place
        if counts[place]:
            tall = max(tall, 1.5)
            parts.append(
                f'<rect class="bar" x="{left + 4:.1f}" y="{top + height - tall:.1f}" '
                f'width="{wide - 8:.1f}" height="{tall:.1f}"/>'
            )
        label = f"≤ {_BARS[place]:g}" if place < len(_BARS) else f"> {_BARS[-1]:g}"
        parts.append(_text(left + wide / 2, top + height + 20, label, "small", "middle"))
    total = sum(counts.values())
    parts.append(
        _text(LEFT, top - 12, f"how long partitions paused, in seconds ({total:,} pauses)")
    )
    return parts
