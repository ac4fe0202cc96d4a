"""Photographs of the dashboard.

`python -m tests.browser.pictures docs/pictures` (`make pictures`) writes the one of the README.
With `--sizes` it writes the page at 1200 and 400 pixels, light and dark, with 4, 64, 300 and
1,000 partitions that wait, move and are in quarantine, for a human to look at; with `--states`
the same of every state (`scenes.py`).
"""

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from broker.postgres.embedded import EmbeddedPostgres
from broker.service import Broker
from tests.browser.chromium import Browser, Page, chromium
from tests.browser.scenes import STATES, Stage, crowd, orders, shows
from tests.databases import FAST, Databases
from tests.service import running, settings_for

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
        server = ending.enter_context(EmbeddedPostgres(scratch / "data", settings=FAST))
        databases = ending.enter_context(closing(Databases(server)))
        browser = ending.enter_context(chromium(program, scratch))
        if given.states is not None:
            for name in given.states or STATES:
                with stage(databases, browser) as here:
                    page = STATES[name](here)
                    all_of(page, given.directory, name)
                    page.close()
        elif given.sizes:
            here = ending.enter_context(stage(databases, browser))
            for partitions, consumers in SIZES:
                page = here.page(f"#{crowd(here.url, partitions, consumers, ending)}")
                shows(page, ".headline", "Rebalancing")
                all_of(page, given.directory, str(partitions))
        else:
            here = ending.enter_context(stage(databases, browser))
            page = orders(here.url, ending, browser)
            page.width(1200)
            # Down to the handoffs; no row is cut.
            bottom = (
                "document.querySelector('[aria-label=Handoffs]').getBoundingClientRect().bottom"
            )
            height = round(page.run(bottom)) + 16
            photograph(page, given.directory / "dashboard.png", 1200, height)


@contextmanager
def stage(databases: Databases, browser: Browser) -> Iterator[Stage]:
    """A service without queues."""
    with databases.lend() as url, ExitStack() as ending:
        settings = settings_for(url)
        service = ending.enter_context(running(Broker(settings), settings))
        yield Stage(service.url, url, browser, ending)


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
