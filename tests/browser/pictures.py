"""Photographs of the dashboard.

`python -m tests.browser.pictures docs/pictures` (`make pictures`) writes the one of the README.
With `--sizes` it writes the page at 1200 and 400 pixels, light and dark, with 4, 64, 300 and
1,000 partitions that wait, move and are in quarantine, for a human to look at; with `--states`
the same of every state (`scenes.py`).
"""

import argparse
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from broker.postgres.embedded import EmbeddedPostgres
from tests.browser.chromium import Page, chromium
from tests.browser.scenes import STATES, Stage, crowd, orders, shows
from tests.databases import FAST
from tests.service import ServeProcess

WIDTHS = (1200, 400)
# Partitions and consumers of the pictures that are looked at.
SIZES = ((4, 2), (64, 5), (300, 12), (1000, 50))
TALLEST = 2400


def photograph(page: Page, path: Path, width: int, height: int) -> None:
    page.still()
    page.width(width, height)
    page.photograph(path)
    print(f"{path}  {path.stat().st_size // 1024} KiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--sizes", action="store_true", help="all sizes, to look at")
    parser.add_argument("--states", nargs="*", help="these states, or all, to look at")
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        raise SystemExit("chromium is not installed")
    with ExitStack() as ending:
        scratch = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="pictures-")))
        database = ending.enter_context(EmbeddedPostgres(scratch / "data", settings=FAST))
        service = ServeProcess(scratch / "service.log", ["--database-url", database])
        ending.callback(service.end)
        service.start()
        browser = ending.enter_context(chromium(program, scratch))
        if given.states is not None:
            stage = Stage(service.url, database, browser, ending)
            for name, state in STATES.items():
                page = state(stage)
                if name in given.states or not given.states:
                    all_of(page, given.directory, name)
                page.close()
        elif given.sizes:
            for partitions, consumers in SIZES:
                queue = crowd(service.url, partitions, consumers, ending)
                page = browser.open(f"{service.url}/#{queue}")
                shows(page, ".headline", "Rebalancing")
                all_of(page, given.directory, str(partitions))
        else:
            page = orders(service.url, ending, browser)
            page.width(1200)
            # Down to the handoffs; no row is cut.
            bottom = (
                "document.querySelector('[aria-label=Handoffs]').getBoundingClientRect().bottom"
            )
            height = round(page.run(bottom)) + 16
            photograph(page, given.directory / "dashboard.png", 1200, height)


def all_of(page: Page, directory: Path, name: str) -> None:
    """The page in every width, light and dark."""
    for width in WIDTHS:
        page.width(width, 900)
        height = min(TALLEST, page.run("document.documentElement.scrollHeight"))
        for colours in ("light", "dark"):
            page.dark(colours == "dark")
            photograph(page, directory / f"{name}-{width}-{colours}.png", width, height)


if __name__ == "__main__":
    main()
