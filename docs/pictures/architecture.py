"""Draws architecture.svg: who talks to whom. Run it after a change; a test compares the two.

The text is black or white on its own ground, so that the picture reads on light and dark pages.
"""

from pathlib import Path

PICTURE = Path(__file__).with_name("architecture.svg")

STYLE = """
  text { font: 15px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1a2233; }
  .title { font-weight: 650; font-size: 16px; }
  .small { font-size: 13px; fill: #46536b; }
  .box { stroke-width: 1.5; }
  .messages { stroke: #2559c8; stroke-width: 4; fill: none; marker-end: url(#m); }
  .calls { stroke: #a2541b; stroke-width: 2; stroke-dasharray: 6 4; fill: none; }
  .says { fill: #a2541b; font-size: 13px; }
  .carries { fill: #2559c8; font-size: 13px; }
"""


def box(x: int, y: int, width: int, height: int, colours: tuple[str, str], *lines: str) -> str:
    """A box with a title and smaller lines below it."""
    ground, edge = colours
    parts = [
        (
            f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{height}" rx="8" '
            f'fill="{ground}" stroke="{edge}"/>'
        )
    ]
    for number, line in enumerate(lines):
        kind = "title" if number == 0 else "small"
        parts.append(f'<text class="{kind}" x="{x + 14}" y="{y + 26 + 20 * number}">{line}</text>')
    return "\n".join(parts)


def cells(x: int, y: int, colours: str) -> str:
    """The partitions of the log, each in the colour of its owner."""
    return "\n".join(
        f'<rect x="{x + 30 * n}" y="{y}" width="26" height="26" rx="4" fill="{colour}"/>'
        f'<text x="{x + 30 * n + 13}" y="{y + 18}" text-anchor="middle" '
        f'style="fill:#fff;font-size:13px">{n}</text>'
        for n, colour in enumerate(colours.split())
    )


def line(kind: str, path: str, says: str = "", x: int = 0, y: int = 0) -> str:
    """An arrow, and the words beside it."""
    words = {"messages": "carries", "calls": "says"}[kind]
    text = f'<text class="{words}" x="{x}" y="{y}">{says}</text>' if says else ""
    return f'<path class="{kind}" d="{path}"/>{text}'


BLUE, RED, GREEN = "#2a5fb8", "#a8452f", "#0f7a58"
PLAIN = ("#ffffff", "#8593ab")


def picture() -> str:
    """The SVG."""
    parts = [
        '<rect width="960" height="430" rx="12" fill="#f3f5f9"/>',
        box(30, 190, 150, 70, PLAIN, "Publishers", "append, with keys"),
        box(290, 170, 280, 110, ("#ffffff", BLUE), "The log", "Postgres, Redis Streams or Kafka"),
        cells(304, 232, f"{BLUE} {BLUE} {RED} {RED} {RED} {GREEN} {GREEN} {GREEN}"),
        box(715, 40, 225, 70, ("#e6eefc", BLUE), "Spark application one", "owns 0 and 1"),
        box(715, 180, 225, 70, ("#fbe9e4", RED), "Spark application two", "owns 2, 3 and 4"),
        box(715, 320, 225, 70, ("#e0f4ec", GREEN), "Python consumer", "owns 5, 6 and 7"),
        box(
            300,
            340,
            260,
            70,
            ("#fff4e8", "#a2541b"),
            "Counterpoise",
            "any number of replicas",
        ),
        box(40, 340, 170, 70, PLAIN, "Postgres", "owners and positions"),
        line("messages", "M180 225 H276", "messages", 192, 213),
        line("messages", "M570 205 C640 200 640 80 700 76"),
        line("messages", "M570 222 C640 220 650 216 700 215"),
        line("messages", "M570 245 C640 250 640 340 700 346"),
        line("calls", "M560 365 C680 350 650 110 715 96"),
        line("calls", "M560 375 C680 370 660 240 715 236", "who owns what, positions", 572, 412),
        line("calls", "M560 382 C640 384 660 372 715 368"),
        line("calls", "M210 375 H300"),
    ]
    body = "\n".join(parts)
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 430" width="960" height="430" role="img"
 aria-label="Publishers append to a log. Consumers read it. The service tells each what it owns.">
<style>{STYLE}</style>
<defs><marker id="m" markerWidth="4" markerHeight="4" refX="1.2" refY="2" orient="auto">
<path d="M0 0 L4 2 L0 4 Z" fill="#2559c8"/></marker></defs>
{body}
</svg>
"""


if __name__ == "__main__":
    PICTURE.write_text(picture(), "utf-8")
