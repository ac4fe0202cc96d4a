"""The dashboard at `/` in a real browser: it shows the owners of partitions and follows changes."""

from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from broker.demo.mock_kafka import MockKafka
from counterpoise.client import Client
from counterpoise.flow import Flow
from counterpoise.headline import Look
from counterpoise.publisher import Publisher
from counterpoise.wire import Condition
from tests.api.access import guarded
from tests.browser.chromium import MARKS, PROGRAM, Browser, Page, chromium, click, fill, submit
from tests.browser.scenes import STATES, Stage
from tests.counterpoise.test_headline import CASES
from tests.kafka_server import kafka
from tests.measured import measured
from tests.service import Service, eventually

__all__ = ["kafka"]
AXE = (importlib.resources.files("axe_core_python") / "axe.min.js").read_text("utf-8")
pytestmark = [pytest.mark.long, *MARKS]


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
    # An open page goes on asking, also a later service that has the port.
    page.close()


def rows(page: Page) -> list[str]:
    """The table of the page, one line for each row."""
    lines = page.run("[...document.querySelectorAll('#main tr')].map((row) => row.innerText)")
    assert isinstance(lines, list)
    return [str(line) for line in lines]


def go(page: Page, queue: str) -> None:
    """Open the page of a queue, and wait for its status."""
    page.run(f"location.hash = {queue!r}")
    eventually(lambda: page.text(".queue h2") == queue and page.text(".headline .status"))


def audited(page: Page) -> list[str]:
    """The calls that the page of the audit shows."""
    calls = "[...document.querySelectorAll('[data-label=call]')].map((one) => one.innerText)"
    return [str(one) for one in page.run(calls)]


def labels(page: Page) -> list[str]:
    """What a screen reader says of each partition."""
    cells = "[...document.querySelectorAll('.cell')].map((cell) => cell.ariaLabel)"
    return [str(one) for one in page.run(cells)]


def letters(page: Page) -> list[str]:
    """The letter of each partition's owner."""
    shown = "[...document.querySelectorAll('.cell b')].map((letter) => letter.innerText)"
    return [str(one) for one in page.run(shown)]


def press(page: Page, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        page.ask("Input.dispatchKeyEvent", {"type": kind, "key": key, "code": key})


def is_off(page: Page) -> bool:
    """Whether the button of the open dialog does nothing."""
    return bool(page.run("document.querySelector('dialog .danger').disabled"))


def test_it_gives_instructions_without_a_queue_and_shows_a_new_one(
    page: Page, client: Client
) -> None:
    eventually(lambda: "counterpoise queues create" in page.text("#main"))
    client.create_queue("flights", 4)
    eventually(lambda: any("flights" in one and "Ready" in one for one in rows(page)))
    page.act("document.querySelector('#main td a')", "it.click()")
    eventually(lambda: "None is bound." in page.text("#main"))
    assert page.run("document.title") == "flights · Counterpoise"


@contextmanager
def held(page: Page, pattern: str) -> Iterator[None]:
    """Calls of the page to these addresses wait until the block ends."""
    page.ask("Fetch.enable", {"patterns": [{"urlPattern": pattern}]})
    yield
    page.ask("Fetch.disable")


def test_what_is_not_loaded_yet_is_said_to_be_loading_and_its_buttons_wait(
    page: Page, client: Client
) -> None:
    client.create_queue("flights", 4)
    eventually(lambda: "flights" in page.text("#main"))
    shown = "[...document.querySelectorAll('.bar .actions button:not([hidden])')]"
    buttons = f"{shown}.map((one) => one.disabled)"
    with held(page, "*/v1/queues/flights/partitions*"):
        page.run("location.hash = 'flights'")
        eventually(lambda: page.text(".queue h2") == "flights")
        assert page.text(".headline") == "Loading…"
        for words in ("None is bound.", "Nothing yet."):
            assert words not in page.text("#main")
        assert page.run(buttons) == [True] * 7
    eventually(lambda: "Ready" in page.text(".headline"))
    assert page.run(buttons) == [False] * 7
    assert "Loading" not in page.text("#main")
    page.act("document.querySelector('.back')", "it.click()")
    # Only the next document says that it is loading.
    eventually(lambda: any("flights" in row for row in rows(page)))
    with held(page, "*/v1/queues?*"):
        page.ask("Page.reload")
        eventually(lambda: "Loading…" in page.text("#main"))
        assert "There is none yet" not in page.text("#main")
    eventually(lambda: any("flights" in row for row in rows(page)))


def test_a_rate_that_is_not_known_has_its_reason(page: Page, client: Client) -> None:
    client.create_queue("flights", 2, log="pulsar://127.0.0.1/flights")
    reason = "the log does not say"
    eventually(lambda: any(row.count(reason) == 2 for row in rows(page)))
    # In a narrow window its word stays whole.
    page.width(400)
    parts = page.run(
        "(() => { const cell = [...document.querySelectorAll('.queues td')].at(-1);"
        " cell.textContent = 'measuring'; const words = document.createRange();"
        " words.selectNodeContents(cell); const parts = words.getClientRects().length;"
        " return cell.scrollWidth > cell.clientWidth ? 0 : parts; })()"
    )
    assert parts == 1
    page.width(1200)
    go(page, "flights")
    eventually(lambda: page.text(".figures").count(reason) == 2)
    assert "lag\nnot known" in page.text(".figures")


def test_consumers_sort_by_a_column_and_names_in_their_natural_order(
    page: Page, client: Client, service: Service
) -> None:
    client.create_queue("flights", 4, rebalance_delay=0)
    go(page, "flights")

    def names() -> list[str]:
        shown = "[...document.querySelectorAll('.opens > span')].map((one) => one.innerText)"
        return [str(one) for one in page.run(shown)]

    with ExitStack() as stack:
        for name in ("billing-10", "billing-2", "audit-1"):
            stack.enter_context(Flow("flights", url=service.url, client_name=name))
        eventually(lambda: names() == ["audit-1", "billing-2", "billing-10"])
        click(page, "consumer")
        eventually(lambda: names() == ["billing-10", "billing-2", "audit-1"])
        click(page, "bound")
        eventually(lambda: names() == ["billing-10", "billing-2", "audit-1"])
        click(page, "bound")
        eventually(lambda: names() == ["audit-1", "billing-2", "billing-10"])
        sorted_by = "[...document.querySelectorAll('th')].map((one) => one.ariaSort)"
        assert page.run(sorted_by).count("descending") == 1


def test_an_open_consumer_shows_all_of_its_partitions_and_its_cells_stand_out(
    page: Page, client: Client, service: Service
) -> None:
    client.create_queue("flights", 40, rebalance_delay=0, max_handoff_time=0)
    go(page, "flights")
    with (
        Flow("flights", url=service.url, client_name="first", max_partitions=30) as first,
        Flow("flights", url=service.url, client_name="second") as second,
    ):
        eventually(lambda: len(first.partitions) == len(second.partitions) == 20)
        # Until then, the page may not know yet whose the others are going to be.
        eventually(lambda: sorted(letters(page)) == ["A"] * 20 + ["B"] * 20)
        opens = "document.querySelector('.opens')"
        page.act(opens, "it.click()")
        assert page.run(f"{opens}.ariaExpanded") == "true"
        assert str(first.flow_id) in page.text("tr.open")
        assert "30 partitions" in page.text("tr.open")
        bright = "[...document.querySelectorAll('.cell:not(.dim) b')].map((one) => one.innerText)"
        assert page.run(bright) == ["A"] * 20
        page.act(opens, "it.click()")
        assert len(page.run(bright)) == 40


def test_few_partitions_show_their_numbers_and_a_click_shows_how_one_came_to_its_owner(
    page: Page, client: Client, service: Service
) -> None:
    client.create_queue("flights", 2, rebalance_delay=0, max_handoff_time=600)
    with Publisher("flights", url=service.url) as publisher:
        for number in range(200):
            publisher.publish(b"x", f"k{number}")
    ends = [one.end or "" for one in client.partitions("flights")]
    go(page, "flights")
    with Flow("flights", url=service.url, client_name="first") as first:
        eventually(lambda: len(first.partitions) == 2)
        first.commit({0: ends[0]})
        cell = "[...document.querySelectorAll('.cell')][0]"
        eventually(lambda: f"{ends[0]} of {ends[0]}" in page.run(f"{cell}.innerText"))
        assert "lag 0" in page.run(f"{cell}.innerText")
        assert page.text(".scale").split() == ["0", "1+", "10+", "100+"]
        with Flow("flights", url=service.url, client_name="second"):
            eventually(lambda: first.partitions[1].state == "revoking")
            eventually(lambda: "0 of 1 handoff done" in page.text(".headline"))
            first.release(1, epoch=1)
            page.act("document.querySelectorAll('.cell')[1]", "it.click()")
            eventually(lambda: "first → second (graceful)" in page.text(".detail .moves"))
            assert "nobody → first (initial)" in page.text(".detail .moves")
            assert f"end\n{ends[1]}" in page.text(".detail dl")


def test_messages_of_the_chosen_partition_are_shown_as_they_are(
    page: Page, client: Client, service: Service, tmp_path: Path
) -> None:
    client.create_queue("flights", 1)
    markup = "<img src=x onerror=\"document.title='run'\">"
    precise = b'{"id": 12345678901234567890}'
    large = json.dumps({"items": [f"screw {number}" for number in range(800)]}).encode()
    with Publisher("flights", url=service.url) as publisher:
        publisher.publish(b'{"total":3}', "customer-1", {"trace": "t-1"})
        publisher.publish(precise, "customer-2")
        publisher.publish(b"\xff\x00", None)
        publisher.publish(markup.encode(), "k")
        publisher.publish(large, "k")
        for number in range(30):
            publisher.publish(f"order {number}".encode(), "k")
    go(page, "flights")
    page.act("document.querySelector('.cell')", "it.click()")
    click(page, "Oldest")
    eventually(lambda: "The log holds positions 0 up to 35." in page.text(".detail"))
    # What JavaScript would change is left as it is.
    cut = f"The first 10,000 of {len(large):,} bytes."
    for words in ('"total": 3', "trace t-1", precise.decode(), "ff 00", markup, cut):
        assert words in page.text(".messages")
    assert page.run("document.title") == "flights · Counterpoise"
    # All of a long one, as text, in hex, in the clipboard and in a file.
    fifth = "document.querySelectorAll('.messages li')[4]"
    press_of = f"[...{fifth}.querySelectorAll('button')].find((one) => one.innerText === "

    def value() -> str:
        return str(page.run(f"{fifth}.querySelector('pre').textContent"))

    page.act(f"{press_of}'Whole')", "it.click()")
    eventually(lambda: value() == json.dumps(json.loads(large), indent=2))
    page.act(f"{press_of}'Hex')", "it.click()")
    assert value().startswith(
        '000000  7b 22 69 74 65 6d 73 22 3a 20 5b 22 73 63 72 65  {"items": ['
    )
    page.act(f"{press_of}'Text')", "it.click()")
    page.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.act(f"{press_of}'Copy')", "it.click()")
    eventually(lambda: "Copied." in page.run(f"{fifth}.innerText"))
    assert page.run("copied") == large.decode()
    page.ask("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    page.act(f"{press_of}'Save')", "it.click()")
    saved = tmp_path / "flights-0-4.json"
    eventually(lambda: saved.exists() and saved.read_bytes() == large)
    shown = "document.querySelectorAll('.messages li').length"
    assert page.run(shown) == 20
    click(page, "Later")
    eventually(lambda: "order 29" in page.text(".messages"))
    assert page.run(shown) == 15
    fill(page, "#look-at", "34")
    page.act("document.querySelector('.detail form')", "it.requestSubmit()")
    eventually(lambda: page.run(shown) == 1)
    # Those that are published at the end of the list or later are none yet.
    fill(page, "#look-since", "2099-01-01T00:00:00")
    page.act("document.querySelector('.detail form')", "it.requestSubmit()")
    eventually(lambda: "No message from there on." in page.text(".detail"))
    fill(page, "#look-for", "key:k ORDER")
    click(page, "Oldest")
    eventually(lambda: "30 of 35 messages match." in page.text(".detail"))
    assert "total" not in page.text(".messages")
    fill(page, "#look-for", "key:k newest")
    click(page, "Follow")
    eventually(lambda: "Follows" in page.text(".detail"))
    with Publisher("flights", url=service.url) as publisher:
        publisher.publish(b"the newest", "other")
        publisher.publish(b"the newest", "k")
    eventually(lambda: "1 message so far" in page.text(".detail"))
    assert page.run(shown) == 1
    click(page, "Newest")
    eventually(lambda: "1 of 37 messages matches." in page.text(".detail"))
    assert page.run("document.querySelector('[aria-pressed]').ariaPressed") == "false"
    assert client.flows("flights") == []
    assert client.partitions("flights")[0].position is None


def test_a_person_publishes_one_message_and_sees_it(page: Page, client: Client) -> None:
    client.create_queue("flights", 4, rebalance_delay=0)
    go(page, "flights")
    click(page, "Publish")
    eventually(lambda: "The service chooses the partition." in page.text(".preview"))
    fill(page, "#act-partition", "4")
    eventually(lambda: "from 0 to 3" in page.text(".preview"))
    assert is_off(page)
    fill(page, "#act-partition", "2")
    eventually(lambda: "It goes to partition 2." in page.text(".preview"))
    fill(page, "#act-headers", "trace")
    eventually(lambda: "a colon" in page.text(".preview"))
    fill(page, "#act-headers", "trace: t-1\nby: me")
    fill(page, "#act-value", "ä" * 40_000)
    eventually(lambda: "Use a publisher" in page.text(".preview"))
    fill(page, "#act-value", '{"total": 3}')
    eventually(lambda: "12 bytes" in page.text(".preview"))
    assert violations(page) == []
    submit(page)
    eventually(lambda: '"total": 3' in page.text(".messages pre"))
    assert "t-1" in page.text(".messages .headers")
    assert client.partitions("flights")[2].lag == 1
    # With a key nobody chooses the partition.
    click(page, "Publish")
    fill(page, "#act-key", "c1")
    eventually(lambda: "Its key decides" in page.text(".preview"))
    assert page.run("document.querySelector('#act-partition').disabled")
    submit(page)
    eventually(lambda: page.text(".messages b") == "0" and "c1" in page.text(".messages"))


def test_a_filter_and_a_time_find_messages_and_values_read_as_what_they_are(page: Page) -> None:
    def call(module: str, expression: str) -> Any:
        return page.run(f"import('/dashboard/{module}.js').then(async (it) => {expression})")

    messages = [
        {"key": "c-1", "headers": {"trace": "t-1"}, "value": "an Order"},
        {"key": "c-11", "headers": {}, "value": "order c-1"},
        {"key": None, "headers": None, "value_base64": "/wA="},
    ]
    for words, matching in (
        ("", None),
        ("order", [0, 1]),
        ("key:c-1", [0]),
        ("c-1", [0, 1]),
        ("header:trace", [0]),
        ("header:trace=t-1 ORDER", [0]),
        ("header:trace=t", []),
        ("header:toString", []),
        ('"an order"', [0]),
        ('header:"trace=t-1"', [0]),
        ("order key:c-2", []),
    ):
        found = call(
            "finding",
            f"{{ const matches = it.filterOf({json.dumps(words)}); return matches && "
            f"{json.dumps(messages)}.flatMap((one, place) => matches(one) ? [place] : []); }}",
        )
        assert found == matching, words
    # Of a log with holes; the last message has no time.
    log = [[3, 10], [4, 20], [9, 20], [12, 30], [13, None]]
    for time, position in ((0, "3"), (10, "3"), (11, "4"), (20, "4"), (21, "10"), (31, "13")):
        found = call(
            "finding",
            f"{{ const log = {json.dumps(log)}; return it.firstSince({time}, async (from) => {{"
            " const [at, when] = log.find(([at]) => at >= Number(from)) ?? [];"
            " const message = at === undefined ? null : { position: String(at),"
            " published_at: when === null ? null : new Date(when).toISOString() };"
            " return { start: '3', end: '14', message }; }); }",
        )
        assert found == position, time
    for value, kind, text in (
        ('{"a":[1]}', "JSON", '{\n  "a": [\n    1\n  ]\n}'),
        ('{"a": 1, "a": 2}', "JSON", '{"a": 1, "a": 2}'),
        ("{not", "text", "{not"),
        ("3", "text", "3"),
    ):
        shown = json.dumps({"value": value, "size_bytes": len(value)})
        assert call("values", f"it.readable({shown})") == {"text": text, "kind": kind}, value
    cut = json.dumps({"value": "[1]", "size_bytes": 4})
    assert call("values", f"it.readable({cut}).kind") == "text"
    binary = json.dumps({"value_base64": "/wA=", "size_bytes": 2, "position": "7"})
    assert call("values", f"it.readable({binary})") == {
        "text": "000000  ff 00  ··",
        "kind": "binary",
    }
    assert call("values", f"it.fileName('flights', 0, {binary})") == "flights-0-7.bin"
    lines = [call("values", f"it.isLong('x\\n'.repeat({n}) + 'x')") for n in (11, 12)]
    assert lines == [False, True]


def test_a_narrow_window_shows_the_consumers_before_the_partitions(
    page: Page, client: Client, service: Service
) -> None:
    client.create_queue("flights", 4, rebalance_delay=0)
    go(page, "flights")
    order = "[...document.querySelectorAll('.queue > section')].map((one) => one.ariaLabel)"

    def consumers_first() -> bool:
        sections = page.run(order)
        return bool(sections.index("Consumers") < sections.index("Partitions"))

    assert not consumers_first()
    page.width(400)
    eventually(consumers_first)
    page.width(1200)
    eventually(lambda: not consumers_first())


def test_the_last_hour_that_the_service_kept_is_drawn_at_once(
    page: Page, client: Client, service: Service, migrated_url: str
) -> None:
    client.create_queue("flights", 4, rebalance_delay=0)
    measured(migrated_url, "flights", rounds=100)
    spark = "document.querySelector('.spark')?.ariaLabel ?? ''"
    eventually(lambda: page.run(spark).startswith("lag of the last hour: at most 3,000"))
    go(page, "flights")
    eventually(lambda: "published" in page.text(".charts .published"))
    assert "committed after\n1.0 s 99 %: 5.0 s" in page.text(".figures")
    points = "document.querySelector('.chart .line.{}').getAttribute('d').split('L').length"
    for line in ("lag", "published", "processed"):
        assert page.run(points.format(line)) >= 100
    # 90 messages in half a minute, and the lag grew by 30 of them.
    labels = "[...document.querySelectorAll('.charts .chart')].map((one) => one.ariaLabel)"
    lag, rates = page.run(labels)
    assert "at most 3,000" in lag
    assert "at most 3/s" in rates
    assert page.run("[...document.querySelectorAll('.chart text')].length") > 8
    with Publisher("flights", url=service.url) as publisher:
        for number in range(3001):
            publisher.publish(b"x", f"k{number}")
    eventually(lambda: page.text(".headline .status") == "nobody consumes (Ready)")
    with Flow("flights", url=service.url), Publisher("flights", url=service.url) as publisher:
        # As many as these may wait for a moment in any busy queue.
        eventually(lambda: page.text(".headline .status") == "Ready")
        client.set_positions("flights", "latest")
        old = datetime.now(UTC) - timedelta(minutes=6)
        for number in range(3001):
            publisher.publish(b"x", f"k{number}", published_at=old)
        eventually(lambda: page.text(".headline .status") == "lag grows (Ready)")


def test_the_list_has_lag_and_rates_and_finds_queues_by_name(
    page: Page, client: Client, service: Service
) -> None:
    for name in ("orders-10", "orders", "flights", "orders-2"):
        client.create_queue(name, 2)
    with Publisher("orders", url=service.url) as publisher:
        for number in range(30):
            publisher.publish(b"x", f"k{number}")
    eventually(lambda: any(re.search(r"orders.*\t30\t\d.* (s|min)\t", one) for one in rows(page)))

    def names() -> list[str]:
        return [row.split("\t")[0] for row in rows(page)[1:]]

    (orders,) = (one for one in rows(page) if one.startswith("orders\t"))
    assert "nobody consumes (Ready)" in orders
    assert not any("nobody" in one for one in rows(page) if one != orders), "there is nothing to do"

    # The page measures `orders` before it has heard of the queues that came after it.
    eventually(lambda: names() == ["flights", "orders", "orders-2", "orders-10"])
    click(page, "lag")
    eventually(lambda: names()[-1] == "orders")
    click(page, "lag")
    eventually(lambda: names() == ["orders", "flights", "orders-2", "orders-10"])
    fill(page, "#find", "FLI")
    eventually(lambda: [row.split("\t")[0] for row in rows(page)] == ["queue", "flights"])


def test_the_headline_says_what_commands_say(page: Page) -> None:
    def said(queue: object, look: Look | None, away: bool = False) -> object:
        module = "import('/dashboard/conditions.js')"
        looks = [] if look is None else [asdict(look)]
        grows = look is not None and look.grows
        history = f"{{ looks: {json.dumps(looks)}, grows: () => {json.dumps(grows)} }}"
        call = f"headline({json.dumps(queue)}, {history}, {json.dumps(away)})"
        return page.run(f"{module}.then(({{ headline }}) => {call})")

    def queue(
        status: str, consumers: int, conditions: dict[str, int] | None, paused: int
    ) -> dict[str, object]:
        return {
            "rebalance_status": status,
            "active_flow_count": consumers,
            "conditions": conditions,
            "paused": {"until": None, "reason": None} if paused is True else None,
            "paused_partition_count": int(paused),
        }

    for status, consumers, look, conditions, paused, text, alarming in CASES:
        told = said(queue(status, consumers, conditions, paused), look)
        assert told == {"told": text, "alarming": alarming}
    told = {"told": "service away, 1 quarantined", "alarming": True}
    assert said(queue("Ready", 1, {"quarantined": 1}, 0), None, away=True) == told


def test_a_queue_that_is_ready_shows_what_its_consumers_report(
    page: Page, client: Client, service: Service
) -> None:
    client.create_queue("flights", 2, rebalance_delay=0)
    with Publisher("flights", url=service.url) as publisher:
        for number in range(10):
            publisher.publish(f"order {number}".encode(), "k")
    with Flow("flights", url=service.url, client_name="first", lease_seconds=60) as flow:
        eventually(lambda: len(flow.partitions) == 2)
        flow.commit({1: "7"})
        poison = Condition("quarantined", "at 7: <b>ValueError</b>", 1, flow.partitions[1].epoch)
        flow.report([poison])
        eventually(lambda: any("1 quarantined (Ready)" in one for one in rows(page)))
        go(page, "flights")
        eventually(lambda: "partition 1 at first" in page.text(".conditions"))
        assert "at 7: <b>ValueError</b>" in page.text(".conditions")
        assert page.text(".headline .status") == "1 quarantined (Ready)"
        first, second = labels(page)
        assert "quarantined" not in first
        assert second.endswith("quarantined: at 7: <b>ValueError</b>")
        click(page, "Show")
        eventually(lambda: "order 7" in page.text(".messages"))
        assert page.text(".detail h3") == "Partition 1"
        pass_poison(page, flow, "Try again", "No message would be read again.")
        assert client.partitions("flights")[1].position == "7"
        pass_poison(page, flow, "Skip", "At most 1 message would never be read.")
        assert client.partitions("flights")[1].position == "8"
        client.create_queue("flights-dead", 1, rebalance_delay=0)
        before = flow.partitions[1].epoch
        said = "at 8, after 2 attempts: ValueError: <i>no</i>"
        flow.report([Condition("quarantined", said, 1, before)])
        eventually(lambda: said in page.text(".conditions"))
        click(page, "To dead letters")
        # The queue that is named for this one is chosen.
        eventually(lambda: "Its owner continues at 9" in page.text(".preview"))
        assert "failed after 2 attempts: ValueError: <i>no</i>" in page.text(".preview")
        assert client.partitions("flights-dead")[0].lag == 0
        submit(page)
        eventually(lambda: flow.partitions[1].epoch == before + 1)
        eventually(lambda: client.partitions("flights")[1].position == "9")
        assert client.partitions("flights-dead")[0].lag == 1
        flow.report([])
        names = ("nobody", "somebody else")
        for number, name in enumerate(names):
            client.pin_partition("flights", number, name)
        eventually(lambda: all(name in page.text(".conditions") for name in names))
        for number in range(len(names)):
            client.unpin_partition("flights", number)
        eventually(lambda: page.text(".headline .status") == "Ready")
        # The page asks for the status and for the conditions each by itself.
        eventually(lambda: page.run("document.querySelector('.conditions').hidden"))


def test_a_queue_of_dead_letters_shows_where_they_come_from(
    page: Page, client: Client, service: Service
) -> None:
    client.create_queue("flights", 1, rebalance_delay=0)
    client.create_queue("flights-dead", 1, rebalance_delay=0)
    with Publisher("flights", url=service.url) as publisher:
        for number in range(3):
            publisher.publish(b"%d" % number, f"k{number}")
    go(page, "flights-dead")
    eventually(lambda: page.text(".headline .status"))
    section = "document.querySelector('section[aria-label=\"Dead letters\"]')"
    assert page.run(f"{section}.hidden")
    for number in (0, 1):
        client.dead_letter("flights", 0, str(number), "flights-dead")
    eventually(lambda: "from flights partition 0 at 1" in page.run(f"{section}.innerText"))
    shown = page.run(f"{section}.innerText")
    assert "from flights partition 0 at 0" in shown
    assert "key k0" in shown
    assert "an administrator has put it aside" in shown
    page.act(f"{section}.querySelector('li button')", "it.click()")
    eventually(lambda: page.text(".detail h3") == "Partition 0")
    eventually(lambda: "counterpoise-dead-letter-error" in page.text(".messages li .headers"))
    with Flow("flights-dead", url=service.url, client_name="first"):
        eventually(lambda: "first" in "".join(rows(page)))
        click(page, "Send back")
        eventually(lambda: "first consumes the letters" in page.text(".preview"))
        click(page, "Cancel")
    eventually(lambda: "None is bound" in page.text("#main"))
    click(page, "Send back")
    eventually(lambda: "2 letters would go to flights." in page.text(".preview"))
    assert client.partitions("flights")[0].lag == 1
    submit(page)
    eventually(lambda: client.partitions("flights")[0].lag == 3)
    # What is passed waits no longer.
    eventually(lambda: page.run(f"{section}.hidden"))
    # Of another queue the page says nothing of letters.
    go(page, "flights")
    eventually(lambda: "lag" in page.text(".figures"))
    assert page.run(f"{section}.hidden")


def pass_poison(page: Page, flow: Flow, button: str, said: str) -> None:
    """Use this button beside the message at 7 of partition 1, until the flow has its new epoch."""
    before = flow.partitions[1].epoch
    flow.report([Condition("quarantined", "at 7: ValueError", 1, before)])
    eventually(lambda: "at 7: ValueError" in page.text(".conditions"))
    click(page, button)
    eventually(lambda: said in page.text(".preview"))
    assert "It has the key k and 7 bytes." in page.text(".preview")
    submit(page)
    eventually(lambda: flow.partitions[1].epoch == before + 1)


def test_it_follows_partitions_as_flows_come_and_go(
    page: Page, client: Client, service: Service, tmp_path: Path
) -> None:
    client.create_queue("flights", 5, rebalance_delay=0, max_handoff_time=600)
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
            eventually(lambda: letters(page) == owners)
            eventually(lambda: "lag\n49" in page.text("#main dl"))
            eventually(lambda: re.search(r"oldest message\n\d", page.text("#main dl")))
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
    client.create_queue("flights", 4, rebalance_delay=0, max_handoff_time=600, ordered_resize=False)
    go(page, "flights")
    with Flow("flights", url=service.url, client_name="first"):
        eventually(lambda: "owner first" in "".join(labels(page)))
        click(page, "Resize")
        fill(page, "#act-count", "6")
        eventually(lambda: "2 new partitions" in page.text(".preview"))
        assert "newer messages of a key" in page.text(".preview")
        # The service has said it: it knows what the page does not.
        assert "first: 4 → 6" in page.text(".preview")
        assert client.queue("flights").partition_count == 4
        submit(page)
        eventually(lambda: client.queue("flights").partition_count == 6)
        eventually(lambda: len(labels(page)) == 6)
        click(page, "Drain first")
        eventually(lambda: "No other consumer is bound" in page.text(".preview"))
        click(page, "Cancel")
        assert not client.flows("flights")[0].draining
        click(page, "Set positions")
        fill(page, "#act-where", "latest")
        eventually(lambda: "would be read again" in page.text(".preview"))
        fill(page, "#act-name", "flights")
        submit(page)
        eventually(lambda: client.partitions("flights")[0].epoch == 2)
        click(page, "Rebalance now")
        eventually(lambda: "no partition moves" in page.text(".preview"))
        click(page, "Cancel")


def test_a_dialog_acts_only_on_what_was_chosen_and_seen(
    page: Page, client: Client, service: Service
) -> None:
    client.create_queue("flights", 2, rebalance_delay=0)
    with Publisher("flights", url=service.url) as publisher:
        for number in range(30):
            publisher.publish(b"x", f"k{number}")
    go(page, "flights")
    with Flow("flights", url=service.url, client_name="first"):
        eventually(lambda: "owner first" in "".join(labels(page)))
        # Nothing would change.
        click(page, "Resize")
        eventually(lambda: "Nothing changes." in page.text(".preview"))
        assert is_off(page)
        fill(page, "#act-count", "3")
        eventually(lambda: not is_off(page))
        click(page, "Cancel")
        click(page, "Rebalance now")
        eventually(lambda: "no partition moves" in page.text(".preview"))
        assert is_off(page)
        click(page, "Cancel")
        # No place is chosen at first, and a slip of the hand does not skip messages.
        click(page, "Set positions")
        eventually(lambda: "Choose where" in page.text(".preview"))
        assert is_off(page)
        fill(page, "#act-where", "latest")
        warned = "At most 30 messages would never be read."
        eventually(lambda: page.text(".preview .warning") == warned)
        submit(page)
        fill(page, "#act-name", "flight")
        assert is_off(page)
        assert {one.epoch for one in client.partitions("flights")} == {1}
        fill(page, "#act-name", "flights")
        assert not is_off(page)
        submit(page)
        eventually(lambda: {one.epoch for one in client.partitions("flights")} == {2})
        assert {one.lag for one in client.partitions("flights")} == {0}


def test_an_administrator_creates_and_deletes_a_queue_and_finds_both_in_the_audit(
    browser: Browser, service: Service, client: Client
) -> None:
    # Not the page that must be without faults: it may look at the deleted queue once more.
    page = browser.open(service.url)
    click(page, "Create a queue")
    off = "document.querySelector('dialog .danger').disabled"
    fill(page, "#act-name", "a name")
    eventually(lambda: "1 to 200 letters" in page.text(".preview"))
    assert page.run(off)
    assert violations(page) == []
    fill(page, "#act-name", "flights")
    fill(page, "#act-count", "3")
    eventually(lambda: "3 partitions on the built-in log" in page.text(".preview"))
    fill(page, "#act-consumers", "spark")
    fill(page, "#act-hours", "0.5")
    eventually(lambda: "stay for 30 min, and at most 1 GiB" in page.text(".preview"))
    submit(page)
    eventually(lambda: [one.name for one in client.queues()] == ["flights"])
    created = client.queue("flights")
    assert (created.max_handoff_time, created.raw["retention_seconds"]) == (30, 1800)
    assert created.ordered_resize
    go(page, "flights")
    eventually(lambda: len(labels(page)) == 3)
    page.act("document.querySelector('.cell')", "it.click()")
    eventually(lambda: "last commit\nnone yet" in page.text(".detail dl"))
    click(page, "Settings")
    eventually(lambda: page.text(".preview") == "Nothing changes.")
    assert is_off(page)
    fill(page, "#act-max_handoff_time", "12.5")
    fill(page, "#act-retention_seconds", "2")
    fill(page, "#act-max_weight", "4")
    eventually(lambda: "(1: all are equal): 1,000 → 4." in page.text(".preview"))
    assert "(hours): 30 min → 2 h." in page.text(".preview")
    submit(page)
    eventually(lambda: client.queue("flights").max_handoff_time == 12.5)
    changed = client.queue("flights").raw
    chosen = {"max_handoff_time": 12.5, "retention_seconds": 7200, "max_weight": 4}
    assert changed == {**created.raw, **chosen, "revision": changed["revision"]}
    click(page, "Delete")
    eventually(lambda: "All messages are processed" in page.text(".preview"))
    assert page.run(off)
    fill(page, "#act-name", "flights")
    submit(page)
    eventually(lambda: client.queues() == [])
    # The answer leads to the list.
    eventually(lambda: "There is none yet" in page.text("#main"))
    page.act("document.querySelector('#audit')", "it.click()")
    eventually(lambda: audited(page) == ["delete queue", "change queue", "create queue"])
    assert violations(page) == []


def test_settings_are_read_as_people_give_them_and_only_changes_are_sent(page: Page) -> None:
    def call(expression: str) -> Any:
        return page.run(f"import('/dashboard/settings.js').then((it) => {expression})")

    new = {
        "name": "flights",
        "count": 8,
        "consumers": "python",
        "log": " ",
        "ordered": True,
        "hours": 24,
        "gib": 1,
    }
    served = {"partition_count": 8, "max_handoff_time": 3}
    own = {"retention_seconds": 86400, "retention_bytes": 2**30}
    kafka = "kafka://host:9092/flights"
    for given, content in (
        ({}, {**served, **own, "ordered_resize": True}),
        ({"ordered": False}, {**served, **own, "ordered_resize": False}),
        ({"gib": 0.1}, {**served, **own, "retention_bytes": 107374182, "ordered_resize": True}),
        ({"log": kafka}, {**served, "log": kafka}),
        ({"log": kafka, "count": "none"}, {"max_handoff_time": 3, "log": kafka}),
        ({"log": kafka, "ordered": False}, {**served, "log": kafka, "ordered_resize": False}),
        ({"name": ""}, None),
        ({"count": "none"}, None),
        ({"count": 1.5}, None),
        ({"hours": -1}, None),
    ):
        values = json.dumps({**new, **given}).replace('"none"', "NaN")
        created = call(f"it.creationOf({values}).content ?? null")
        assert created == (content and {"name": "flights", **content}), given
    queue = {
        "max_concurrent_handoffs": None,
        "retention_seconds": 100,
        "retention_bytes": 1001,
        "ordered_resize": True,
        "rebalance_delay": 5,
        "max_weight": 1000,
    }
    for fields, changed in (
        # As the fields show them.
        ({"retention_seconds": 100 / 3600, "retention_bytes": 1001 / 2**30}, {}),
        ({"max_concurrent_handoffs": "none", "ordered_resize": True, "rebalance_delay": 5}, {}),
        ({"max_concurrent_handoffs": 2}, {"max_concurrent_handoffs": 2}),
        ({"ordered_resize": False}, {"ordered_resize": False}),
        ({"rebalance_delay": 0}, {"rebalance_delay": 0}),
        ({"rebalance_delay": "none"}, None),
        ({"max_concurrent_handoffs": 1.5}, None),
        ({"max_weight": 1000}, {}),
        ({"max_weight": 1}, {"max_weight": 1}),
        ({"max_weight": "none"}, None),
        ({"max_weight": 1.5}, None),
        ({"max_weight": 1001}, None),
    ):
        values = json.dumps(fields).replace('"none"', "NaN")
        found = call(f"it.changesOf({json.dumps(queue)}, {values})")
        assert (None if "wrong" in found else found["content"]) == changed, fields


def test_the_end_of_a_queue_that_was_left_leaves_the_next_page_alone(
    browser: Browser, service: Service, client: Client
) -> None:
    """The answer to the page of the deleted queue comes when another page is shown."""
    client.create_queue("flights", 2)
    page = browser.open(service.url)
    go(page, "flights")
    page.run(
        "{ window.real = fetch; window.held = [];"
        " window.fetch = (url, ...more) => String(url).includes('flights')"
        " ? new Promise((done) => held.push(() => done(real(url, ...more))))"
        " : real(url, ...more); }"
    )
    eventually(lambda: page.run("held.length") > 0)
    client.delete_queue("flights")
    page.act("document.querySelector('#audit')", "it.click()")
    eventually(lambda: page.text("#main h2") == "Audit")
    page.run("{ window.fetch = real; for (const answer of held) answer(); }")
    eventually(lambda: audited(page) == ["delete queue", "create queue"])
    page.close()


def test_a_queue_that_is_there_again_is_shown_again(
    browser: Browser, service: Service, client: Client
) -> None:
    client.create_queue("flights", 2)
    page = browser.open(service.url)
    go(page, "flights")
    client.delete_queue("flights")
    eventually(lambda: "does not exist" in page.text("#main"))
    client.create_queue("flights", 3)
    eventually(lambda: len(labels(page)) == 3)
    page.close()


def test_an_administrator_changes_one_partition(page: Page, client: Client) -> None:
    client.create_queue("clicks", 2, partitioning="dynamic", rebalance_delay=0)
    go(page, "clicks")
    eventually(lambda: len(labels(page)) == 2)
    page.act("document.querySelector('.cell')", "it.click()")
    click(page, "Merge")
    fill(page, "#act-other", "1")
    eventually(lambda: "take no more messages" in page.text(".preview"))
    submit(page)
    eventually(lambda: len(labels(page)) == 3)
    page.act("document.querySelectorAll('.cell')[2]", "it.click()")
    click(page, "Split")
    eventually(lambda: not is_off(page))
    submit(page)
    eventually(lambda: len(labels(page)) == 5)
    click(page, "Set its position")
    eventually(lambda: "The position is not set" in page.text(".preview"))
    fill(page, "#act-at", "0")
    eventually(lambda: "new epoch" in page.text(".preview"))
    submit(page)
    eventually(lambda: client.partitions("clicks")[2].position == "0")


def test_an_administrator_pauses_and_resumes_a_queue_and_a_partition(
    page: Page, client: Client
) -> None:
    client.create_queue("flights", 2)
    go(page, "flights")
    eventually(lambda: len(labels(page)) == 2)
    page.act("document.querySelectorAll('.cell')[1]", "it.click()")
    click(page, "Pause it")
    fill(page, "#act-reason", "wrong <b>prices</b>")
    fill(page, "#act-seconds", "3600")
    eventually(lambda: "read nothing more" in page.text(".preview"))
    submit(page)
    eventually(lambda: client.partitions("flights")[1].paused is not None)
    eventually(lambda: "wrong <b>prices</b>" in labels(page)[1])
    assert "paused" not in labels(page)[0]
    assert "paused\n1" in page.text(".figures")
    click(page, "Pause")
    submit(page)
    eventually(lambda: client.queue("flights").paused is not None)
    eventually(lambda: "paused until it is resumed" in page.text(".headline"))
    assert page.text(".headline .status") == "no consumer, paused (Ready)"
    assert page.run("document.querySelector('.status').matches('.quiet')")
    click(page, "Resume it")
    eventually(lambda: "stays paused with it" in page.text(".preview"))
    click(page, "Cancel")
    click(page, "Resume")
    submit(page)
    eventually(lambda: client.queue("flights").paused is None)
    eventually(lambda: "paused" not in labels(page)[0])
    click(page, "Resume it")
    submit(page)
    eventually(lambda: client.partitions("flights")[1].paused is None)


def test_an_administrator_mirrors_a_queue_on_kafka_and_ends_it(
    page: Page, client: Client, kafka: MockKafka
) -> None:
    kafka.create_topic("flights", 2)
    client.create_queue("on-kafka", log=kafka.log("flights"))
    client.create_queue("built-in", 2)
    shown = "[...document.querySelectorAll('.actions button')].filter((one) => !one.hidden)"
    names = f"{shown}.map((one) => one.innerText)"
    go(page, "built-in")
    eventually(lambda: len(labels(page)) == 2)
    assert "Mirror" not in page.run(names)
    go(page, "on-kafka")
    eventually(lambda: len(labels(page)) == 2)
    assert "Mirror" in page.run(names)

    def facts() -> str:
        return str(page.run("document.querySelector('.more').textContent"))

    assert "mirrored" not in facts()
    mirror_to(page, client, "counterpoise.on-kafka")
    eventually(lambda: "mirrored into groupcounterpoise.on-kafka" in facts())
    mirror_to(page, client, "etl")
    eventually(lambda: "mirrored into groupetl" in facts())
    mirror_to(page, client, "")
    eventually(lambda: "mirrored" not in facts())


def mirror_to(page: Page, client: Client, group: str) -> None:
    """Change the group of the queue on Kafka in its dialog; empty: none."""
    before = client.queue("on-kafka").raw["mirror_group"]
    click(page, "Mirror")
    # What is there already is nothing to do.
    fill(page, "#act-group", before or "")
    eventually(lambda: page.text(".preview") and is_off(page))
    fill(page, "#act-group", group)
    eventually(lambda: not is_off(page))
    kept = f"The offsets of the group {before} stay as they are now."
    assert (kept in page.text(".preview")) == (before is not None)
    submit(page)
    eventually(lambda: client.queue("on-kafka").raw["mirror_group"] == (group or None))


def test_a_thousand_partitions_and_fifty_consumers_are_legible(
    page: Page, client: Client, service: Service, tmp_path: Path
) -> None:
    client.create_queue("ticks", 1000, rebalance_delay=2, max_handoff_time=0)
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


# Words that are on two lines, and not because they are longer than any column.
BROKEN_WORDS = """(() => {
  const found = [], word = /(?<!\\w)[A-Za-z]{2,16}(?!\\w)/g, range = document.createRange();
  const within = document.querySelector('dialog[open]') ?? document.body;
  const texts = document.createTreeWalker(within, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode;
    for (const { 0: letters, index } of text.data.matchAll(word)) {
      range.setStart(text, index);
      range.setEnd(text, index + letters.length);
      const lines = new Set([...range.getClientRects()].map(({ top }) => Math.round(top)));
      if (lines.size > 1) found.push(letters);
    }
  }
  return found;
})()"""


@pytest.mark.matrix("state")
@pytest.mark.parametrize("state", STATES)
def test_axe_finds_no_violation_in_any_state(
    browser: Browser, service: Service, migrated_url: str, state: str
) -> None:
    found = {}
    with ExitStack() as ending:
        page = STATES[state](Stage(service.url, migrated_url, browser, ending))
        for width, dark in ((1200, False), (400, True)):
            page.still()
            page.dark(dark)
            page.width(width)
            found[width] = violations(page)
            assert page.run("document.documentElement.scrollWidth") <= width, width
            wide = "(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth)"
            within = "document.querySelector('dialog') ?? document.documentElement"
            assert not page.run(f"{wide}({within})"), width
            assert page.run(BROKEN_WORDS) == [], width
        page.close()
    assert found == {1200: [], 400: []}


def violations(page: Page) -> list[str]:
    """What axe-core finds on the page as it is; in a dialog, if one is open."""
    if page.run("typeof axe === 'undefined'"):
        page.run(AXE)
    # The nodes that are as they should be are not listed: that takes as long as the search.
    found = page.run(
        "axe.run(document.querySelector('dialog') ?? document, {resultTypes: ['violations']})"
        ".then((found) => found.violations.map((one) => one.id + ': '"
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
    eventually(lambda: "service away, no consumer (" in page.text("#main"))
    page.ask("Network.emulateNetworkConditions", {"offline": False, **offline})
    eventually(lambda: not page.text("#notice"))
    page.close()


def test_it_follows_changes_again_when_their_stream_was_refused(
    page: Page, client: Client, service: Service
) -> None:
    streams, refused = service.app.state.open_streams, service.app.state.rates.refused
    client.create_queue("flights", 2)
    go(page, "flights")
    eventually(lambda: len(streams) == 1)
    allowed, streams._most = streams._most, {"key": 0, "flow": 0, "address": 0}
    streams.make_room()
    eventually(lambda: refused.labels("address_streams")._value.get() > 0)
    streams._most = allowed
    eventually(lambda: len(streams) == 1)


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
        go(page, "team-a.orders")
        page.act("document.querySelector('.cell')", "it.click()")
        eventually(lambda: "A key of a consumer" in page.text(".detail"))
        page.run("location.hash = ''")
        eventually(lambda: "Ready" in page.text("#main"))
        assert "viewer" in page.text("#who")
        assert key not in str(page.run("document.cookie + document.documentElement.outerHTML"))
        page.act("document.querySelector('#leave')", "it.click()")
        eventually(lambda: page.run("!document.querySelector('#login').hidden"))
        assert "team-a" not in page.text("body")

        # An administrator gives the key once more, for the changes of the next minutes.
        key = secured.keys["admin"]
        fill(page, "#key", key)
        page.act("document.querySelector('#login button')", "it.click()")
        eventually(lambda: "team-a.orders" in page.text("#main"))
        go(page, "team-a.orders")
        change(page, "Pause", key)
        eventually(lambda: re.search(r"unlocked for (10:00|9:\d\d)", page.text("#unlocked")))
        assert violations(page) == []
        change(page, "Resume", None)
        click(page, "Lock")
        eventually(lambda: page.run("document.querySelector('#unlocked').hidden"))
        # What this page does not know: another one has locked the session meanwhile.
        change(page, "Pause", key)
        eventually(lambda: page.text("#unlocked"))
        page.run("fetch('/v1/session/lock', { method: 'POST' }).then((answer) => answer.status)")
        click(page, "Pause")
        eventually(lambda: not is_off(page))
        click(page, "Pause")
        eventually(lambda: "only reads" in page.text("dialog .problem"))
        eventually(lambda: page.run("!document.querySelector('#unlock-key').parentElement.hidden"))
        fill(page, "#unlock-key", key)
        click(page, "Pause")
        eventually(lambda: page.run("document.querySelector('dialog') === null"))
        assert key not in str(page.run("document.cookie + document.documentElement.outerHTML"))
        page.act("document.querySelector('#leave')", "it.click()")
        eventually(lambda: page.run("document.querySelector('#unlocked').hidden"))
        page.close()


def change(page: Page, button: str, key: str | None) -> None:
    """Confirm what this button asks, with a key where it asks for one."""
    seen = f"(one) => one.innerText === {button!r} && one.checkVisibility()"
    eventually(lambda: page.run(f"[...document.querySelectorAll('button')].some({seen})"))
    click(page, button)
    eventually(lambda: page.run("document.querySelector('dialog[open]') !== null"))
    asks = "!document.querySelector('#unlock-key').parentElement.hidden"
    assert page.run(asks) == (key is not None)
    if key is not None:
        fill(page, "#unlock-key", key)
    eventually(lambda: not is_off(page))
    click(page, button)
    eventually(lambda: page.run("document.querySelector('dialog') === null"))


def test_an_address_that_no_browser_makes_names_no_queue(
    browser: Browser, client: Client, service: Service
) -> None:
    client.create_queue("flights", 2)
    page = browser.open(f"{service.url}/#100%")
    eventually(lambda: "is not 1 to 200" in page.text("#notice"))
    page.run("location.hash = ''")
    eventually(lambda: "flights" in page.text("#main") and not page.text("#notice"))
    page.run("location.hash = '%'")
    eventually(lambda: page.text(".queue h2") == "%")
    page.close()


def test_it_says_that_the_service_is_away_if_an_answer_never_comes(
    browser: Browser, client: Client, service: Service
) -> None:
    client.create_queue("flights", 2)
    page = browser.open(service.url)
    eventually(lambda: "flights" in page.text("#main"))
    page.run(
        "{ const real = AbortSignal.timeout.bind(AbortSignal);"
        " AbortSignal.timeout = (milliseconds) => real(milliseconds / 30); }"
    )
    with held(page, "*/v1/queues*"):
        eventually(lambda: "does not answer" in page.text("#notice"))
        eventually(lambda: "service away" in page.text("#main"))
    eventually(lambda: not page.text("#notice"))
    page.close()


def test_hidden_pages_leave_the_connections_of_the_browser_to_the_others(
    browser: Browser, client: Client, service: Service
) -> None:
    """A browser has six for all of its pages, and each that follows a queue keeps one."""
    streams = service.app.state.open_streams
    client.create_queue("flights", 2)
    pages = []
    for _ in range(8):
        pages.append(browser.open(f"{service.url}/#flights"))
        eventually(lambda: "Ready" in pages[-1].text(".headline"))
    eventually(lambda: len(streams) == 1)
    assert pages[0].run("document.hidden")
    # It is up to date as soon as it is seen again, and follows.
    client.change_queue("flights", partition_count=3)
    pages[0].ask("Page.bringToFront")
    eventually(lambda: len(labels(pages[0])) == 3)
    eventually(lambda: len(streams) == 1)
    client.change_queue("flights", partition_count=4)
    eventually(lambda: len(labels(pages[0])) == 4)
    for page in pages:
        page.close()


def test_a_message_that_was_changed_after_a_lost_answer_is_published_too(
    page: Page, client: Client
) -> None:
    client.create_queue("flights", 1)
    go(page, "flights")
    page.run(
        "{ const real = fetch; window.lost = 0; window.fetch = async (url, options) => {"
        " const answer = await real(url, options);"
        " if (options?.method !== 'POST' || lost === 2) return answer;"
        " lost += 1; throw new TypeError('its answer is lost'); }; }"
    )
    click(page, "Publish")
    # Twice the same one, then another.
    for value, lost in (("first", 1), ("first", 2), ("second", 2)):
        fill(page, "#act-value", value)
        eventually(lambda: not is_off(page))
        submit(page)
        eventually(partial(page.run, f"lost === {lost}"))
    eventually(lambda: page.run("document.querySelector('dialog') === null"))
    assert client.partitions("flights")[0].lag == 2


def test_the_clock_of_the_service_is_that_of_its_last_answers(page: Page) -> None:
    """The clock of this machine was an hour behind, and is set."""
    differences = page.run(
        "import('/dashboard/calls.js').then(async ({ get, secondsUntil }) => {"
        " const real = { fetch, now: Date.now }, time = () => new Date(real.now());"
        " const headers = () => ({ Date: time().toUTCString() });"
        " window.fetch = async () => new Response('{}', { headers: headers() });"
        " const differs = async () => {"
        " await get('/session'); return secondsUntil(time().toISOString()); };"
        " Date.now = () => real.now() - 3600000; const behind = await differs();"
        " Date.now = real.now; const set = await differs();"
        " window.fetch = real.fetch; return [behind, set]; })"
    )
    assert [abs(one) < 5 for one in differences] == [True, True]


def test_names_that_are_written_from_right_to_left_turn_no_arrow(
    page: Page, client: Client, service: Service
) -> None:
    client.create_queue("flights", 1, rebalance_delay=0, max_handoff_time=0)
    go(page, "flights")
    first, second = "\u05d0\u05d1\u05d2", "\u05d3\u05d4\u05d5"
    line = "document.querySelector('.timeline details[open] li')"
    # Where each of these begins, from the left.
    lefts = (
        f"((text) => {json.dumps([first, '→', second])}.map((word) => {{"
        " const range = document.createRange(), at = text.data.indexOf(word);"
        " range.setStart(text, at); range.setEnd(text, at + word.length);"
        f" return range.getBoundingClientRect().left; }}))({line}.firstChild)"
    )
    with Flow("flights", url=service.url, client_name=first) as one:
        eventually(lambda: one.partitions)
        with Flow("flights", url=service.url, client_name=second):
            one.drain()
            eventually(lambda: "began to drain: 1 handoff" in page.text(".timeline"))
            page.act("document.querySelector('.timeline details')", "it.open = true")
            eventually(lambda: second in page.run(f"{line}?.innerText ?? ''"))
            found = page.run(lefts)
            assert found == sorted(found)


def test_a_list_that_follows_shows_the_newest_of_more_than_it_has_room_for(
    page: Page, client: Client, service: Service
) -> None:
    client.create_queue("flights", 1)
    go(page, "flights")
    page.act("document.querySelector('.cell')", "it.click()")
    click(page, "Follow")
    eventually(lambda: "new messages come first" in page.text(".detail"))
    with Publisher("flights", url=service.url) as publisher:
        for number in range(500):
            publisher.publish(b"order %d" % number)
    eventually(lambda: "order 499" in page.text(".messages"))
    eventually(lambda: "more come than are shown" in page.text(".detail"))
    assert "500 messages so far" not in page.text(".detail")


def test_positions_that_the_log_does_not_know_are_not_counted_as_none(
    page: Page, client: Client, service: Service, migrated_url: str
) -> None:
    client.create_queue("flights", 2)
    with Publisher("flights", url=service.url) as publisher:
        for number in range(30):
            publisher.publish(b"x", f"k{number}")
    first, second = (one.end for one in client.partitions("flights"))
    client.set_positions("flights", {1: second})
    with psycopg.connect(migrated_url, autocommit=True) as database:
        # As after a restore.
        database.execute("UPDATE counterpoise_log.ends SET next_position = 1 WHERE partition = 1")
    go(page, "flights")
    click(page, "Set positions")
    fill(page, "#act-where", "latest")
    eventually(lambda: "does not say how many messages that concerns" in page.text(".preview"))
    warned = f"Of the other partitions at most {first} messages would never be read."
    assert page.text(".preview .warning") == warned


def test_all_pages_of_a_browser_show_who_has_logged_in(browser: Browser, migrated_url: str) -> None:
    with guarded(migrated_url) as secured:
        secured.create("team-a.orders")

        def enter(page: Page, role: str) -> None:
            eventually(lambda: page.run("document.querySelector('#login')?.hidden === false"))
            fill(page, "#key", secured.keys[role])
            page.act("document.querySelector('#login button')", "it.click()")
            eventually(lambda: role in page.text("#who"))

        first = browser.open(secured.service.url)
        enter(first, "admin")
        second = browser.open(secured.service.url)
        eventually(lambda: "admin" in second.text("#who"))
        second.act("document.querySelector('#leave')", "it.click()")
        enter(second, "viewer")
        first.ask("Page.bringToFront")
        eventually(lambda: "viewer" in first.text("#who"))
        eventually(lambda: "Create a queue" not in first.text("#main"))
        for page in (first, second):
            page.close()
