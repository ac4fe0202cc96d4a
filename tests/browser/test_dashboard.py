"""The dashboard at `/` in a real browser: it shows the owners of partitions and follows changes."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from counterpoise.client import Client
from counterpoise.conditions import Condition
from counterpoise.flow import Flow
from counterpoise.publisher import Publisher
from tests.api.access import guarded
from tests.browser.chromium import MARKS, PROGRAM, Browser, Page, chromium
from tests.service import Service, eventually

AXE = (importlib.resources.files("axe_core_python") / "axe.min.js").read_text("utf-8")
pytestmark = MARKS


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    with chromium(PROGRAM, tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url) as client:
        yield client


@pytest.fixture
def page(browser: Browser, service: Service) -> Iterator[Page]:
    page = browser.open(service.url)
    yield page
    assert page.faults() == []


def rows(page: Page) -> list[str]:
    """The table of the page, one line for each row."""
    lines = page.run("[...document.querySelectorAll('#main tr')].map((row) => row.innerText)")
    assert isinstance(lines, list)
    return [str(line) for line in lines]


def go(page: Page, queue: str) -> None:
    """Open the page of a queue, and wait for its status."""
    page.run(f"location.hash = {queue!r}")
    eventually(lambda: page.text(".queue h2") == queue and page.text(".headline .status"))


def labels(page: Page) -> list[str]:
    """What a screen reader says of each partition."""
    cells = "[...document.querySelectorAll('.cell')].map((cell) => cell.ariaLabel)"
    return [str(one) for one in page.run(cells)]


def press(page: Page, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        page.ask("Input.dispatchKeyEvent", {"type": kind, "key": key, "code": key})


def click(page: Page, words: str) -> None:
    """Click the button with these words (of an open dialog, if there is one)."""
    buttons = "[...(document.querySelector('dialog') ?? document).querySelectorAll('button')]"
    named = f"(one) => (one.ariaLabel ?? one.innerText) === {words!r}"
    page.act(f"{buttons}.find({named})", "it.click()")


def fill(page: Page, selector: str, value: str) -> None:
    page.act(
        f"document.querySelector({selector!r})",
        f"it.value = {value!r}; it.dispatchEvent(new Event('input'))",
    )


def submit(page: Page) -> None:
    """Send the form of the open dialog."""
    page.act("document.querySelector('dialog form')", "it.requestSubmit()")


def test_it_gives_instructions_without_a_queue_and_shows_a_new_one(
    page: Page, client: Client
) -> None:
    eventually(lambda: "counterpoise queues create" in page.text("#main"))
    client.create_queue("flights", 4)
    eventually(lambda: any("flights" in one and "Ready" in one for one in rows(page)))
    page.act("document.querySelector('#main td a')", "it.click()")
    eventually(lambda: "None is bound." in page.text("#main"))
    assert page.run("document.title") == "flights · Counterpoise"


def test_the_list_has_lag_and_rates_and_finds_queues_by_name(
    page: Page, client: Client, service: Service
) -> None:
    for name in ("flights", "orders"):
        client.create_queue(name, 2)
    with Publisher("orders", url=service.url) as publisher:
        for number in range(30):
            publisher.publish(b"x", f"k{number}")
    eventually(lambda: any("orders" in one and "\t30\t" in one for one in rows(page)))
    fill(page, "#find", "FLI")
    eventually(lambda: [row.split("\t")[0] for row in rows(page)] == ["queue", "flights"])


def test_a_queue_that_is_ready_shows_what_its_consumers_report(
    page: Page, client: Client, service: Service
) -> None:
    client.create_queue("flights", 2, rebalance_delay=0)
    with Flow("flights", url=service.url, client_name="first", lease_seconds=60) as flow:
        eventually(lambda: len(flow.partitions) == 2)
        poison = Condition("quarantined", "at 7: <b>ValueError</b>", 1, flow.partitions[1].epoch)
        flow.report([poison])
        eventually(lambda: any("Ready, 1 quarantined" in one for one in rows(page)))
        go(page, "flights")
        eventually(lambda: "partition 1 at first" in page.text(".conditions"))
        assert "at 7: <b>ValueError</b>" in page.text(".conditions")
        assert page.text(".headline .status") == "Ready, 1 quarantined"
        first, second = labels(page)
        assert "quarantined" not in first
        assert second.endswith("quarantined: at 7: <b>ValueError</b>")
        flow.report([])
        eventually(lambda: page.text(".headline .status") == "Ready")
        assert page.run("document.querySelector('.conditions').hidden") is True


def test_it_follows_partitions_as_flows_come_and_go(
    page: Page, client: Client, service: Service, tmp_path: Path
) -> None:
    client.create_queue("flights", 5, rebalance_delay=0, max_handoff_time=60)
    with Publisher("flights", url=service.url) as publisher:
        for number in range(50):
            publisher.publish(b"x", f"k{number}")
    go(page, "flights")
    with Flow("flights", url=service.url, client_name="first") as first:
        eventually(lambda: any("first" in one and "0–4" in one for one in rows(page)))
        first.commit({0: "1"})
        with Flow("flights", url=service.url, client_name="second") as second:
            eventually(lambda: "On their way (2)" in page.text("#main"))
            # The page asks for its parts one by one: the next may be of a moment before.
            eventually(lambda: "Rebalancing" in page.text(".headline"))
            eventually(lambda: "because a consumer came" in page.text(".headline"))
            eventually(lambda: "being handed off, next owner second" in labels(page)[4])
            eventually(lambda: "first finishes its work, at most" in page.text(".moving"))
            page.photograph(tmp_path / "rebalancing.png")
            for number in (3, 4):
                first.release(number, epoch=1)
            eventually(lambda: any("second" in one and "3–4" in one for one in rows(page)))
            eventually(lambda: second.partitions.keys() == {3, 4})
            eventually(lambda: "owner first" in labels(page)[0])
            eventually(lambda: "owner second" in labels(page)[4])
            # Letters tell owners apart without colour.
            owners = ["A", "A", "A", "B", "B"]
            eventually(lambda: page.text(".cells").split()[::2] == owners)
            eventually(lambda: "lag\n49" in page.text("#main dl"))
            eventually(lambda: "second bound: 2 handoffs" in page.text(".timeline"))
            page.dark()
            page.photograph(tmp_path / "dark.png")
    eventually(lambda: "None is bound." in page.text("#main"))


def test_the_keyboard_chooses_a_partition_and_the_filter_dims_the_others(
    page: Page, client: Client, service: Service
) -> None:
    client.create_queue("flights", 5, rebalance_delay=0)
    go(page, "flights")
    with Flow("flights", url=service.url, client_name="first"):
        eventually(lambda: len(labels(page)) == 5 and "owner first" in labels(page)[4])
        page.act("document.querySelector('.cells')", "it.focus()")
        press(page, "ArrowRight")
        press(page, "ArrowRight")
        eventually(lambda: page.text(".detail h3") == "Partition 1")
        press(page, "End")
        eventually(lambda: page.text(".detail h3") == "Partition 4")
        assert page.run(
            "document.activeElement.ariaActiveDescendantElement?.innerText ?? "
            "document.activeElement.getAttribute('aria-activedescendant')"
        )
        press(page, "Escape")
        eventually(lambda: page.run("document.querySelector('.detail').hidden"))
        fill(page, "#filter", "3")
        dim = "[...document.querySelectorAll('.cell')].map((cell) => cell.matches('.dim'))"
        eventually(lambda: page.run(dim) == [True, True, True, False, True])


def test_an_administrator_sees_what_would_happen_and_does_it(
    page: Page, client: Client, service: Service
) -> None:
    client.create_queue("flights", 4, rebalance_delay=0, max_handoff_time=60)
    go(page, "flights")
    with Flow("flights", url=service.url, client_name="first"):
        eventually(lambda: "owner first" in "".join(labels(page)))
        click(page, "Resize")
        fill(page, "#act-count", "6")
        eventually(lambda: "2 new partitions" in page.text(".preview"))
        assert "newer messages of a key" in page.text(".preview")
        assert client.queue("flights").partition_count == 4
        submit(page)
        eventually(lambda: client.queue("flights").partition_count == 6)
        eventually(lambda: len(labels(page)) == 6)
        click(page, "Drain first")
        eventually(lambda: "No other consumer is bound" in page.text(".preview"))
        click(page, "Cancel")
        assert not client.flows("flights")[0].draining
        click(page, "Set positions")
        eventually(lambda: "would be read again" in page.text(".preview"))
        submit(page)
        eventually(lambda: client.partitions("flights")[0].epoch == 2)
        click(page, "Rebalance now")
        eventually(lambda: "no partition moves" in page.text(".preview"))
        click(page, "Cancel")


def test_a_thousand_partitions_and_fifty_consumers_are_legible(
    page: Page, client: Client, service: Service, tmp_path: Path
) -> None:
    client.create_queue("ticks", 1000, rebalance_delay=0, max_handoff_time=0)
    with ExitStack() as stack:
        for number in range(50):
            stack.enter_context(Flow("ticks", url=service.url, client_name=f"pricer-{number}"))
        go(page, "ticks")
        eventually(lambda: len(labels(page)) == 1000 and len(rows(page)) == 51)
        for width in (1200, 400):
            page.width(width)
            page.photograph(tmp_path / f"{width}.png")
            assert page.run("document.documentElement.scrollWidth") <= width
            # No letter is cut off by the edge of its cell.
            cut = (
                "[...document.querySelectorAll('.cell b')]"
                ".filter((b) => b.scrollWidth > b.parentElement.clientWidth).length"
            )
            assert page.run(cut) == 0


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_no_violation(page: Page, client: Client, service: Service, dark: bool) -> None:
    if dark:
        page.dark()
    times = {"rebalance_delay": 0, "max_handoff_time": 60}
    client.create_queue("flights", 3, **times, ordered_resize=True)
    with Publisher("flights", url=service.url) as publisher:
        for number in range(30):
            publisher.publish(b"x", f"k{number}")
    client.change_queue("flights", partition_count=5)
    with (
        Flow("flights", url=service.url, client_name="first") as first,
        Flow("flights", url=service.url, client_name="second"),
    ):
        eventually(lambda: len(first.partitions) == 5)
        poison = Condition("quarantined", "at 7: ValueError", 1, first.partitions[1].epoch)
        first.report([Condition("log_away", "connection refused"), poison])
        eventually(lambda: any("flights" in one and "1 log away" in one for one in rows(page)))
        assert violations(page) == []
        go(page, "flights")
        eventually(lambda: "On their way" in page.text("#main"))
        eventually(lambda: any("waits at" in one for one in labels(page)))
        page.act("document.querySelector('.cell')", "it.click()")
        assert violations(page) == []
        click(page, "Resize")
        assert violations(page) == []


def violations(page: Page) -> list[str]:
    """What axe-core finds on the page as it is."""
    page.run(AXE)
    found = page.run(
        "axe.run().then((found) => found.violations.map((one) => one.id + ': '"
        " + one.nodes.map((node) => node.target + ' ' + node.failureSummary).join('; ')))"
    )
    return [str(one) for one in found]


def test_names_are_shown_and_never_run(page: Page, client: Client, service: Service) -> None:
    client.create_queue("flights", 1, rebalance_delay=0)
    name = "<img src=x onerror=\"document.title='run'\">"
    go(page, "flights")
    with Flow("flights", url=service.url, client_name=name):
        eventually(lambda: name in page.text("#main"))
        assert page.run("document.title") == "flights · Counterpoise"
        assert page.run("document.querySelectorAll('img').length") == 0


def test_it_says_that_the_service_is_away_and_goes_on_when_it_is_back(
    browser: Browser, client: Client, service: Service
) -> None:
    page = browser.open(service.url)
    client.create_queue("flights", 2)
    eventually(lambda: "flights" in page.text("#main"))
    page.ask("Network.enable")
    offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.ask("Network.emulateNetworkConditions", {"offline": True, **offline})
    eventually(lambda: "does not answer" in page.text("#notice"))
    page.ask("Network.emulateNetworkConditions", {"offline": False, **offline})
    eventually(lambda: not page.text("#notice"))


def test_it_asks_for_a_key_and_shows_the_queues_of_that_key_alone(
    browser: Browser, migrated_url: str
) -> None:
    with guarded(migrated_url) as secured:
        secured.create("team-a.orders")
        secured.create("team-b.orders")
        key = secured.keys["viewer"]
        page = browser.open(secured.service.url)
        eventually(lambda: page.run("document.querySelector('#login')?.hidden === false"))
        assert page.text("#main") == ""
        assert violations(page) == []
        for given in (key[:-1] + ("0" if key[-1] != "0" else "1"), key):
            fill(page, "#key", given)
            page.act("document.querySelector('#login button')", "it.click()")
            if given != key:
                eventually(lambda: "not known" in page.text("#notice"))
        eventually(lambda: "team-a.orders" in page.text("#main"))
        eventually(lambda: "Ready" in page.text("#main"))
        assert "team-b" not in page.text("body")
        assert "viewer" in page.text("#who")
        assert key not in str(page.run("document.cookie + document.documentElement.outerHTML"))
        page.act("document.querySelector('#leave')", "it.click()")
        eventually(lambda: page.run("!document.querySelector('#login').hidden"))
        assert "team-a" not in page.text("body")
