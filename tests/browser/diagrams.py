"""Draws the Mermaid diagrams of the documents as SVG, for the site.

`python -m tests.browser.diagrams MERMAID docs/pictures`: MERMAID is the file `dist/mermaid.min.js`
of the npm package `mermaid`. GitHub draws Mermaid itself; the site shows these pictures, so that it
loads nothing from another host. Their names are made of their sources, as `deploy/site/build.py`
makes them.
"""

import argparse
import hashlib
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.browser.chromium import PROGRAM, Page, chromium

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs/pictures"
FENCE = re.compile(r"^```mermaid\n(.*?)^```", re.M | re.S)
# Text in SVG itself, because pictures have no HTML.
SETTINGS = {"startOnLoad": False, "theme": "neutral", "htmlLabels": False, "deterministicIds": True}
DRAW = """
(async () => {
  mermaid.initialize(%s);
  return (await mermaid.render("diagram", %s)).svg;
})()
"""


def diagrams() -> Iterator[str]:
    """The sources of all diagrams in the documents."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        yield from FENCE.findall(page.read_text("utf-8"))


def name_of(source: str) -> str:
    """The name of a diagram's picture."""
    return f"diagram-{hashlib.sha256(source.encode()).hexdigest()[:12]}.svg"


def draw(page: Page, source: str) -> str:
    svg = str(page.run(DRAW % (json.dumps(SETTINGS), json.dumps(source))))
    head, body = svg.split(">", 1)
    box = re.search(r'viewBox="\S+ \S+ (\S+) (\S+)"', head)
    assert box is not None, head
    head = re.sub(r'\b(?:width|height|style)="[^"]*"', "", head)
    # On white, because the site has a dark mode.
    size = f'width="{box[1]}" height="{box[2]}" style="background: white"'
    return f"{head} {size}>{body}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("mermaid", type=Path, help="dist/mermaid.min.js of the npm package")
    parser.add_argument("directory", type=Path, help="where the pictures are written")
    arguments = parser.parse_args()
    if PROGRAM is None:
        raise SystemExit("not installed: chromium")
    for old in arguments.directory.glob("diagram-*.svg"):
        old.unlink()
    with tempfile.TemporaryDirectory() as scratch, chromium(PROGRAM, Path(scratch)) as browser:
        page = browser.open("about:blank")
        page.run(arguments.mermaid.read_text("utf-8") + "; 0")
        for source in diagrams():
            target = arguments.directory / name_of(source)
            target.write_text(draw(page, source), "utf-8")
            print(target)


if __name__ == "__main__":
    main()
