"""The dashboard at `/` in a real browser: it shows the owners of partitions and follows changes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from counterpoise.client import Client
from counterpoise.flow import Flow
from counterpoise.publisher import Publisher
from tests.api.access import guarded
from tests.browser.chromium import Browser, Page, chromium
from tests.service import Service, eventually

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(PROGRAM is None, reason="not installed: chromium"),
    pytest.mark.xdist_group("browser"),
]


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
    """The table of flows, one line each."""
    lines = page.run("[...document.querySelectorAll('#queue tr')].map((row) => row.innerText)")
    assert isinstance(lines, list)
    return [str(line) for line in lines]


def test_it_gives_instructions_without_a_queue_and_shows_a_new_one(
    page: Page, client: Client
) -> None:
    eventually(lambda: "counterpoise queues create" in page.text("#queues"))
    client.create_queue("flights", 4)
    eventually(lambda: "flights" in page.text("#queues") and "Ready" in page.text("#queue"))
    assert "None is bound." in page.text("#queue")


def test_it_follows_partitions_as_flows_come_and_go(
    page: Page, client: Client, service: Service, tmp_path: Path
) -> None:
    client.create_queue("flights", 5, rebalance_delay=0, max_handoff_time=60)
    with Publisher("flights", url=service.url) as publisher:
        for number in range(50):
            publisher.publish(b"x", f"k{number}")
    with Flow("flights", url=service.url, client_name="first") as first:
        eventually(lambda: any("first" in one and "0–4" in one for one in rows(page)))
        first.commit({0: "1"})
        with Flow("flights", url=service.url, client_name="second") as second:
            eventually(lambda: "On their way" in page.text("#queue"))
            assert "Rebalancing" in page.text("#queues")
            page.photograph(tmp_path / "rebalancing.png")
            for number in (3, 4):
                first.release(number, epoch=1)
            eventually(lambda: any("second" in one and "3–4" in one for one in rows(page)))
            assert second.partitions.keys() == {3, 4}
            titles = page.run("[...document.querySelectorAll('#partitions i')].map((i) => i.title)")
            assert "owner first" in titles[0]
            assert "owner second" in titles[4]
            eventually(lambda: "lag\n49" in page.text("#queue dl"))
            page.dark()
            page.photograph(tmp_path / "dark.png")
    eventually(lambda: "None is bound." in page.text("#queue"))


def test_names_are_shown_and_never_run(page: Page, client: Client, service: Service) -> None:
    client.create_queue("flights", 1, rebalance_delay=0)
    name = "<img src=x onerror=\"document.title='run'\">"
    with Flow("flights", url=service.url, client_name=name):
        eventually(lambda: name in page.text("#queue"))
        assert page.run("document.title") == "Counterpoise"
        assert page.run("document.querySelectorAll('img').length") == 0


def test_it_says_that_the_service_is_away_and_goes_on_when_it_is_back(
    browser: Browser, client: Client, service: Service
) -> None:
    page = browser.open(service.url)
    client.create_queue("flights", 2)
    eventually(lambda: "flights" in page.text("#queue h2"))
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
        assert page.run("document.querySelector('#main').hidden")
        log_in = (
            "document.querySelector('#key').value = {!r};"
            "document.querySelector('#login button').click()"
        )
        page.run(log_in.format(key[:-1] + ("0" if key[-1] != "0" else "1")))
        eventually(lambda: "not known" in page.text("#notice"))
        page.run(log_in.format(key))
        eventually(lambda: "team-a.orders" in page.text("#queues"))
        eventually(lambda: "Ready" in page.text("#queue"))
        assert "team-b" not in page.text("body")
        assert "viewer" in page.text("#who")
        assert key not in str(page.run("document.cookie + document.documentElement.outerHTML"))
        page.run("document.querySelector('#leave').click()")
        eventually(lambda: page.run("!document.querySelector('#login').hidden"))
        assert "team-a" not in page.text("body")
