"""Queues to look at, and the states in which the dashboard shows them.

A real service shows real queues. Their consumers are flows of this process: some are behind, one
has just come, and the partitions that it is to get are on their way. `STATES` are pages that such
queues do not show by themselves: dialogs, errors, nothing, names of any length. The test for
accessibility and the pictures for people go through the same ones. Each needs a service without
queues, because each brings its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from broker import access_keys
from broker.core.access import Role
from broker.demo.mock_kafka import MockKafka
from counterpoise.client import Client
from counterpoise.conditions import quarantined
from counterpoise.consumer.letters import letter_headers
from counterpoise.flow import Flow
from counterpoise.keys import partition_of
from counterpoise.publisher import Publisher
from counterpoise.wire import Condition
from tests.browser.chromium import Browser, Page, click, fill, submit
from tests.measured import measured
from tests.service import eventually


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
        settings = {"rebalance_delay": 1, "max_handoff_time": 120, **settings}
        self.client.create_queue(queue, partitions, **settings)

    def publish(self, messages: int) -> None:
        with Publisher(self.queue, url=self.url) as publisher:
            for number in range(messages):
                publisher.publish(b"an order", key=f"customer-{number % 997}")

    def join(self, *names: str) -> None:
        """Consumers bind, and every partition that moves is released at once."""
        self.bind(*names)
        eventually(self._released)

    def arrive(self, name: str, released: int) -> None:
        """One more binds, and only some of the partitions that it is to get are released."""
        self.bind(name)
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
            return "measuring" not in page.text(".figures")

        eventually(measured)

    def bind(self, *names: str) -> None:
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


@dataclass(frozen=True)
class Stage:
    """A service, the URL of its database, a browser, and what ends with them."""

    url: str
    database_url: str
    browser: Browser
    ending: ExitStack

    def scene(self, queue: str, partitions: int, **settings: Any) -> Scene:
        return Scene(self.url, queue, partitions, self.ending, **settings)

    def page(self, path: str = "") -> Page:
        return self.browser.open(f"{self.url}/{path}")

    def of(self, scene: Scene) -> Page:
        """The page of a queue, once it is there."""
        page = self.page(f"#{scene.queue}")
        eventually(lambda: page.text(".headline .status"))
        return page


def _nothing(stage: Stage) -> Page:
    page = stage.page()
    shows(page, "#main", "There is none yet")
    return page


def _loading(stage: Stage) -> Page:
    scene = stage.scene("loading", 4)
    page = stage.page()
    shows(page, "#main", scene.queue)
    page.ask("Fetch.enable", {"patterns": [{"urlPattern": "*/v1/queues/loading/*"}]})
    page.run(f"location.hash = {scene.queue!r}")
    shows(page, ".headline", "Loading")
    return page


def _unread(stage: Stage) -> Page:
    """Messages, and no consumer."""
    scene = stage.scene("unread", 6)
    scene.publish(500)
    page = stage.of(scene)
    shows(page, "#main", "None is bound")
    return page


def _holddown(stage: Stage) -> Page:
    scene = stage.scene("holddown", 64, rebalance_delay=3000)
    scene.publish(5000)
    scene.bind("billing-1")
    page = stage.of(scene)
    shows(page, ".headline", "begins in")
    return page


def _idle(stage: Stage) -> Page:
    """All is processed, of an hour that was measured."""
    scene = stage.scene("idle", 12)
    scene.publish(1000)
    scene.join("billing-1", "billing-2", "billing-3")
    scene.work(behind=0)
    measured(stage.database_url, scene.queue, rounds=100)
    page = stage.of(scene)
    shows(page, ".charts", "published")
    return page


def _rebalancing(stage: Stage) -> Page:
    """Partitions that move, wait and are in quarantine."""
    page = stage.page(f"#{crowd(stage.url, 16, 3, stage.ending)}")
    shows(page, "#main", "On their way")
    return page


def _chosen(stage: Stage) -> Page:
    """A partition that moved before and moves again, chosen."""
    scene = stage.scene("chosen", 8)
    scene.publish(300)
    scene.join("billing-1")
    scene.work(behind=12)
    scene.arrive("billing-2", released=1)
    page = stage.of(scene)
    shows(page, ".headline", "1 of 4 handoffs done")
    with Publisher(scene.queue, url=scene.url) as publisher:
        order = b'{"order": 17, "items": [{"name": "screws", "count": 3}]}'
        publisher.publish(order, key="customer-x3", headers={"trace": "00-4bf92f3577b34da6"})
        publisher.publish(b"\xff\x00\x17", key="customer-x3")
        publisher.publish(b"an order " * 400, key="customer-x3")
    number = partition_of("customer-x3", 8)
    page.act(f"document.querySelector('#partition-{number}')", "it.click()")
    shows(page, ".detail", f"Partition {number}")
    click(page, "Newest")
    shows(page, ".messages", "screws")
    return page


def _open(stage: Stage) -> Page:
    """A consumer whose row is open."""
    scene = stage.scene("open", 120)
    scene.publish(1000)
    scene.join("billing-1", "billing-2", "billing-10")
    page = stage.of(scene)
    page.act("document.querySelector('.opens')", "it.click()")
    shows(page, "tr.open", "flow")
    return page


def _names(stage: Stage) -> Page:
    """The longest names that the service takes."""
    scene = stage.scene("team-a." + "transactions" * 15 + "-eu", 4)
    scene.publish(100)
    scene.join("billing-" + "worker" * 30, "ein Verbraucher mit Leerzeichen " * 6)
    scene.complain()
    page = stage.of(scene)
    shows(page, ".conditions", "quarantined")
    page.act("document.querySelector('.cell')", "it.click()")
    shows(page, ".detail .moves", "nobody → ")
    return page


def _queues(stage: Stage) -> Page:
    """The list, of queues in all states."""
    for state in (_unread, _holddown, _idle, _rebalancing, _dynamic, _names):
        state(stage).close()
    page = stage.page()
    shows(page, "#main", "team-a.")
    eventually(lambda: "measuring" not in page.text("#main"))
    return page


def _found_none(stage: Stage) -> Page:
    _unread(stage).close()
    page = stage.page()
    fill(page, "#find", "nothing like it")
    shows(page, "#main", "No queue has this")
    return page


def _audit(stage: Stage) -> Page:
    stage.scene("audited", 4)
    page = stage.page("#/audit")
    shows(page, "#main", "create queue")
    page.act("document.querySelector('#main details')", "it.open = true")
    return page


def _missing(stage: Stage) -> Page:
    page = stage.page("#no-such-queue")
    shows(page, "#main", "does not exist")
    return page


def _away(stage: Stage) -> Page:
    """The service does not answer."""
    page = _idle(stage)
    page.ask("Network.enable")
    offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.ask("Network.emulateNetworkConditions", {"offline": True, **offline})
    shows(page, "#notice", "does not answer")
    return page


def _dialog(
    over: Callable[[Stage], Page], button: str, words: str, **fields: str
) -> Callable[[Stage], Page]:
    """The dialog behind a button of the page in this state, filled, when it says these words."""

    def state(stage: Stage) -> Page:
        page = over(stage)
        click(page, button)
        for name, value in fields.items():
            fill(page, f"#act-{name}", value)
        shows(page, "dialog", words)
        return page

    return state


def _mirror(stage: Stage) -> Page:
    """The dialog of a queue on Kafka, whose positions are mirrored, over its details."""
    kafka = stage.ending.enter_context(MockKafka())
    kafka.create_topic("topic", 4)
    log, group = kafka.log("topic"), "counterpoise.mirrored"
    page = stage.of(stage.scene("mirrored", 4, log=log, mirror_group=group))
    page.act("document.querySelector('.more')", "it.open = true")
    click(page, "Mirror")
    fill(page, "#act-group", "dashboards")
    shows(page, "dialog", "as offsets of the group dashboards")
    return page


def _dead_letter(stage: Stage) -> Page:
    """The dialog that puts a message in quarantine to the dead letters."""
    scene = stage.scene("billed", 4)
    stage.scene("billed-dead", 1)
    scene.publish(100)
    scene.join("billing-1")
    [flow] = scene.flows
    error = ValueError("the order names no currency, so it has no price")
    flow.commit({1: "3"})
    flow.report([quarantined(1, flow.partitions[1].epoch, "3", 5, error)])
    page = stage.of(scene)
    shows(page, ".conditions", "quarantined")
    click(page, "To dead letters")
    shows(page, "dialog", "Its owner continues at 4")
    return page


def _letters(stage: Stage) -> Page:
    """A queue of dead letters."""
    stage.scene("billed", 4)
    scene = stage.scene("billed-dead", 2)
    errors = ("ValueError: the order names no currency, so it has no price", "KeyError: 'items'")
    with Publisher(scene.queue, url=scene.url) as publisher:
        for number in range(24):
            at = datetime(2026, 11, 20, 10, number, tzinfo=UTC)
            error = errors[number % 2]
            said = letter_headers({}, "billed", number % 4, 3, str(40 + number), at, 5, error)
            publisher.publish(b"an order", f"customer-{number}", said)
    page = stage.of(scene)
    shows(page, "#main", "The first 10 of 24 messages")
    return page


def _redrive(stage: Stage) -> Page:
    """The dialog that sends dead letters back."""
    scene = stage.scene("charged", 2)
    stage.scene("charged" * 28, 1)
    stage.scene("charged-dead", 1)
    scene.publish(20)
    for partition in (0, 1):
        for position in range(5):
            scene.client.dead_letter("charged", partition, str(position), "charged-dead")
    page = stage.page("#charged-dead")
    shows(page, "#main", "Dead letters")
    click(page, "Send back")
    shows(page, "dialog", "10 letters would go to charged")
    return page


def _dynamic(stage: Stage) -> Page:
    """Partitions that were split and merged, and wait for those."""
    page = stage.page(f"#{split(stage.url, stage.ending)}")
    shows(page, "#main", "waiting")
    return page


def _part(stage: Stage) -> Page:
    """A partition of a dynamic queue, chosen."""
    page = _dynamic(stage)
    page.act("document.querySelector('#partition-0')", "it.click()")
    shows(page, ".detail", "Partition 0")
    return page


def _login(stage: Stage) -> Page:
    """From now on the service needs a key."""
    access_keys.create(stage.database_url, Role.ADMIN, ("*",), "root")
    page = stage.page()
    eventually(lambda: page.run("document.querySelector('#login')?.hidden === false"))
    return page


def _unlocking(stage: Stage) -> Page:
    """An administrator has logged in, and a dialog asks for the key once more."""
    _unread(stage).close()
    key = access_keys.create(stage.database_url, Role.ADMIN, ("*",), "ops").text
    page = stage.page("#unread")
    eventually(lambda: page.run("document.querySelector('#login')?.hidden === false"))
    fill(page, "#key", key)
    page.act("document.querySelector('#login button')", "it.click()")
    shows(page, ".headline", "Ready")
    click(page, "Pause")
    shows(page, "dialog", "It unlocks this session")
    fill(page, "#unlock-key", key)
    return page


def _unlocked(stage: Stage) -> Page:
    """The session may change something for some minutes."""
    page = _unlocking(stage)
    submit(page)
    shows(page, "#unlocked", "unlocked for")
    shows(page, ".headline", "paused")
    return page


STATES: Mapping[str, Callable[[Stage], Page]] = {
    "nothing": _nothing,
    "loading": _loading,
    "unread": _unread,
    "holddown": _holddown,
    "idle": _idle,
    "rebalancing": _rebalancing,
    "chosen": _chosen,
    "open": _open,
    "dynamic": _dynamic,
    "names": _names,
    "queues": _queues,
    "found-none": _found_none,
    "audit": _audit,
    "missing": _missing,
    "away": _away,
    "create": _dialog(_nothing, "Create a queue", "on the built-in log", name="flights"),
    "settings": _dialog(_unread, "Settings", "→", access_type="exclusive"),
    "publish": _dialog(_unread, "Publish", "12 bytes", headers="trace: t-1", value='{"total": 3}'),
    "resize": _dialog(_open, "Resize", "retire", count="7"),
    "rebalance": _dialog(_holddown, "Rebalance now", "ends at once"),
    "positions": _dialog(_names, "Set positions", "never be read", where="latest"),
    "mirror": _mirror,
    "delete": _dialog(_unread, "Delete", "are not processed"),
    "drain": _dialog(_open, "Drain billing-1", "other consumer"),
    "split-one": _dialog(_part, "Split", "takes no more"),
    "position": _dialog(_part, "Set its position", "read again", at="0"),
    "dead-letter": _dead_letter,
    "letters": _letters,
    "redrive": _redrive,
    "login": _login,
    "unlocking": _unlocking,
    "unlocked": _unlocked,
}
