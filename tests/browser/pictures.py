"""Photographs of the dashboard.

`python -m tests.browser.pictures docs/pictures` (`make pictures`) writes the one of the README.
With `--sizes` it writes the page at 1200 and 400 pixels, light and dark, with 4, 300 and 1,000
partitions that wait, move and are in quarantine, for a human to look at.

A real service shows real queues. Their consumers are flows of this process: some are behind, one
has just come, and the partitions that it is to get are on their way.
"""

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from counterpoise.client import Client
from counterpoise.conditions import Condition
from counterpoise.flow import Flow
from counterpoise.publisher import Publisher
from tests.browser.chromium import Browser, Page, chromium
from tests.service import ServeProcess, eventually

WIDTHS = (1200, 400)
# Partitions and consumers of the pictures that are looked at.
SIZES = ((4, 2), (300, 12), (1000, 50))
TALLEST = 2400


class Scene:
    """A queue, its messages and its consumers. They leave when `ending` ends."""

    def __init__(
        self, url: str, queue: str, partitions: int, ending: ExitStack, **settings: Any
    ) -> None:
        self.url = url
        self.queue = queue
        self.client = ending.enter_context(Client(url))
        self.flows: list[Flow] = []
        self._ending = ending
        times = {"rebalance_delay": 1, "max_handoff_time": 120}
        self.client.create_queue(queue, partitions, **times, **settings)

    def publish(self, messages: int) -> None:
        with Publisher(self.queue, url=self.url) as publisher:
            for number in range(messages):
                publisher.publish(b"an order", key=f"customer-{number % 997}")

    def join(self, *names: str) -> None:
        """Consumers bind, and every partition that moves is released at once."""
        self._bind(names)
        eventually(self._released)

    def arrive(self, name: str, released: int) -> None:
        """One more binds, and only some of the partitions that it is to get are released."""
        self._bind([name])
        eventually(lambda: self._moving() != {})
        for flow in self.flows:
            moving = sorted(self._moving().get(flow, []))
            flow.release_many([(number, None, False) for number in moving[:released]])

    def grow(self, partitions: int) -> None:
        """More partitions: they wait for the older messages of their keys."""
        self.client.change_queue(self.queue, partition_count=partitions)
        eventually(self._released)

    def complain(self) -> None:
        """The first consumer has partitions in quarantine, and does not reach its log."""
        first = self.flows[0]
        text = "ValueError: the order customer-17 names no currency, so it has no price"
        poisoned = sorted(first.partitions)[:2]
        of_partitions = [
            Condition(
                "quarantined", f"at {7 + number}: {text}", number, first.partitions[number].epoch
            )
            for number in poisoned
        ]
        away = Condition("log_away", "LogUnavailable: connection refused by 10.0.3.7, port 5432")
        first.report([away, *of_partitions])

    def work(self, behind: int) -> None:
        """Commit up to at most `behind` messages of the end: partitions differ in their lag."""
        ends = {one.partition: int(one.end or 0) for one in self.client.partitions(self.queue)}
        for flow in self.flows:
            flow.commit(
                {
                    number: str(max(0, ends[number] - number * number * 31 % (behind + 1)))
                    for number in flow.partitions
                }
            )

    def flowing(self, page: Page) -> None:
        """Publish and commit until the page has measured how many messages a second that is."""

        def measured() -> bool:
            self.publish(120)
            self.work(behind=40)
            return "published\n–" not in page.text(".headline + dl")

        eventually(measured)

    def _bind(self, names: Sequence[str]) -> None:
        for name in names:
            flow = Flow(self.queue, url=self.url, client_name=name)
            self.flows.append(self._ending.enter_context(flow))

    def _moving(self) -> dict[Flow, list[int]]:
        """The partitions that each consumer has to release."""
        found = {
            flow: [n for n, one in flow.partitions.items() if one.state == "revoking"]
            for flow in self.flows
        }
        return {flow: numbers for flow, numbers in found.items() if numbers}

    def _released(self) -> bool:
        for flow, numbers in self._moving().items():
            flow.release_many([(number, None, False) for number in numbers])
        is_ready = self.client.queue(self.queue).rebalance_status == "Ready"
        return is_ready and all(flow.partitions for flow in self.flows)


def orders(url: str, ending: ExitStack, browser: Browser) -> Page:
    """The page of the README's picture: a third consumer has come."""
    scene = Scene(url, "orders", 24, ending)
    scene.publish(4000)
    scene.join("billing-1")
    scene.join("billing-2")
    scene.work(behind=40)
    page = browser.open(f"{url}/#orders")
    shows(page, ".headline", "Ready")
    scene.flowing(page)
    scene.arrive("billing-3", released=2)
    scene.flowing(page)
    shows(page, "#main", "On their way (4)")
    return page


def crowd(url: str, partitions: int, consumers: int, ending: ExitStack) -> str:
    """A queue of this size, amid a rebalance after a resize; returns its name."""
    queue = f"orders-{partitions}"
    scene = Scene(url, queue, partitions // 2, ending, ordered_resize=True)
    scene.publish(20 * partitions)
    scene.join(*(f"billing-{number}" for number in range(1, consumers)))
    scene.work(behind=12)
    scene.grow(partitions)
    scene.arrive(f"billing-{consumers}", released=0)
    scene.complain()
    return queue


def split(url: str, ending: ExitStack) -> str:
    """A dynamic queue, of which a partition was split and two were merged; returns its name."""
    scene = Scene(url, "clicks", 4, ending, partitioning="dynamic")
    scene.publish(400)
    scene.join("web-1", "web-2")
    scene.work(behind=12)
    scene.client.split_partition(scene.queue, 1)
    scene.client.merge_partitions(scene.queue, 2, 3)
    return scene.queue


def shows(page: Page, selector: str, words: str) -> None:
    """Wait until the page shows these words there."""
    eventually(lambda: words in page.text(selector))


def photograph(page: Page, path: Path, width: int, height: int) -> None:
    page.still()
    page.width(width, height)
    page.photograph(path)
    print(f"{path}  {path.stat().st_size // 1024} KiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--sizes", action="store_true", help="all sizes, to look at")
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        raise SystemExit("chromium is not installed")
    with ExitStack() as ending:
        scratch = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="pictures-")))
        service = ServeProcess(scratch / "service.log", ["--data-dir", str(scratch / "data")])
        ending.callback(service.end)
        service.start()
        browser = ending.enter_context(chromium(program, scratch))
        if not given.sizes:
            page = orders(service.url, ending, browser)
            photograph(page, given.directory / "dashboard.png", 1200, 775)
            return
        for partitions, consumers in SIZES:
            queue = crowd(service.url, partitions, consumers, ending)
            page = browser.open(f"{service.url}/#{queue}")
            shows(page, ".headline", "Rebalancing")
            all_of(page, given.directory, str(partitions))
        page = browser.open(f"{service.url}/#{split(service.url, ending)}")
        shows(page, "#main", "waiting")
        all_of(page, given.directory, "split")
        page = browser.open(service.url)
        for partitions, _ in SIZES:
            shows(page, "#main", f"orders-{partitions}")
        all_of(page, given.directory, "queues")


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
