"""Nothing that Spark shows or writes contains a secret: pages, event log, checkpoints, plans, log.

The secrets are the passwords of log and sink, which the application has, and the secrets that the
service gives it: the tokens of its flows and the password of the built-in log.
"""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag, urljoin, urlsplit

import httpx
import psycopg
import pytest

from api.app import create_app
from counterpoise.publisher import Publisher
from tests.counterpoise.on_redis.conftest import SECRET, World
from tests.counterpoise.on_redis.watched import WatchedApplication
from tests.counterpoise.spark.jobs.drivers import Drivers
from tests.service import listen

pytestmark = pytest.mark.xdist_group("drivers 2")

SINK_SECRET = "sesame-open-yourself"
GIVEN = re.compile(r'"flow_token":"([^"]+)"|postgresql://[^:"]+:([^@"]+)@')
# The requests of Spark's own programs, with all their parameters.
REST = (
    *("environment", "allexecutors", "storage/rdd"),
    *("jobs", "stages?details=true&withSummaries=true", "sql?details=true&planDescription=true"),
)
# These are actions, not pages; and one that stops the JVM for long.
LEFT_OUT = re.compile(r"/kill|terminate|heapHistogram|threadDump")
MOST_PAGES = 300


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The secrets that the service has given out."""
    secrets: set[str] = set()
    make_app = create_app

    def listening(*parts: Any) -> Any:
        app = make_app(*parts)
        app.add_middleware(Listening, secrets=secrets)
        return app

    monkeypatch.setattr("tests.service.create_app", listening)
    return secrets


class Listening:
    """Collects the secrets in the service's answers."""

    def __init__(self, app: Any, secrets: set[str]) -> None:
        self.app = app
        self.secrets = secrets

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        said = b""

        async def hear(message: Any) -> None:
            nonlocal said
            said += message.get("body", b"")
            for found in GIVEN.finditer(said.decode("utf-8", "replace")):
                self.secrets.update(filter(None, found.groups()))
            await send(message)

        await self.app(scope, receive, hear if scope["type"] == "http" else send)


def pages_of(url: str) -> dict[str, str]:
    """Every page that can be reached from the first, and the answers of the REST interface."""
    found: dict[str, str] = {}
    with httpx.Client(timeout=60, follow_redirects=True) as browser:
        (application,) = browser.get(f"{url}/api/v1/applications").json()
        base = f"{url}/api/v1/applications/{application['id']}"
        waiting = deque([f"{url}/", *(f"{base}/{one}" for one in REST)])
        known = set(waiting)
        while waiting:
            answer = browser.get(page := waiting.popleft())
            assert answer.status_code == 200, (page, answer.text)
            found[page.removeprefix(url)] = answer.text
            links = re.findall(r'href=[\'"]([^\'"]+)[\'"]', answer.text)
            for link in links if "html" in answer.headers.get("content-type", "") else ():
                whole = urldefrag(urljoin(str(answer.url), link.replace("&amp;", "&"))).url
                there = urlsplit(whole)
                outside = f"{there.scheme}://{there.netloc}" != url or "/static/" in there.path
                # Tables in another order or on other pages contain the same.
                again = re.search(r"[.](sort|pageSize|desc|page)=", there.query)
                if not (outside or again or LEFT_OUT.search(whole) or whole in known):
                    known.add(whole)
                    waiting.append(whole)
        assert len(found) < MOST_PAGES, sorted(found)
    return found


def texts_under(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): path.read_bytes().decode("utf-8", "replace")
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.mark.matrix(of="queries on Redis")
@pytest.mark.long
def test_nothing_that_spark_shows_or_writes_has_a_secret_in_it(
    told: set[str], world: World, drivers: Drivers, tmp_path: Path, database_url: str
) -> None:
    world.client.create_queue("flights", 3, log=world.log, rebalance_delay=0)
    # It processes nothing, so nothing that the application reads as a batch is trimmed before.
    world.client.create_queue("unread", log=world.log)
    world.client.create_queue("inside", 2)
    for queue in ("flights", "inside"):
        with Publisher(queue, url=world.service.url) as publisher:
            for number in range(300):
                publisher.publish(f"v{number}".encode(), key=f"k{number % 17}")
    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE TABLE events (partition int, position text, value bytea)")
        connection.execute(f"CREATE ROLE opener LOGIN SUPERUSER PASSWORD '{SINK_SECRET}'")
    sink = urlsplit(database_url)
    with listen() as nobody:
        away = f"127.0.0.1:{nobody.getsockname()[1]}"
    urls = [
        sink._replace(netloc=f"opener:{SINK_SECRET}@{where}").geturl()
        for where in (f"{sink.hostname}:{sink.port}", away)
    ]
    application = WatchedApplication(
        "watched",
        tmp_path,
        world.service.url,
        "flights",
        drivers,
        logUrl=world.access,
        _sink=urls[0],
        _away=urls[1],
    )
    try:
        application.start()
        shown = pages_of(application.page())
        assert application.stop() == 0
    finally:
        application.end()
        with psycopg.connect(database_url) as connection:
            connection.execute("DROP OWNED BY opener")
            connection.execute("DROP ROLE opener")
    shown |= texts_under(application.home / "events")
    shown |= texts_under(application.home / "checkpoints")
    shown["its log"] = application.said()

    # The inspected places were really filled: pages of all kinds, failures, plans, offsets.
    for kind in ("/jobs/job/", "/stages/stage/", "/SQL/execution/", "/StreamingQuery/statistics"):
        assert any(page.startswith(kind) for page in shown), (kind, sorted(shown))
    for text, where in (
        ("LogAccessRefused", "/api/v1/.*/stages"),
        ("LogAccessRefused", "/stages/"),
        ("LogAccessRefused", "eventlog|events"),
        ("counterpoise", "/api/v1/.*/sql"),
        ('"flights"', "works/offsets/"),
        ("LogAccessRefused", "its log"),
        ("INFO org.apache.spark", "its log"),
        ("Physical Plan", "its log"),
    ):
        assert any(text in said for page, said in shown.items() if re.match(where, page)), (
            text,
            where,
            sorted(shown),
        )
    flows = {one for one in told if "." not in one}
    assert len(told) >= 3, "two flows at least, and the access of the built-in log"
    assert flows
    for secret in {SECRET, SINK_SECRET, *told}:
        assert [page for page, said in shown.items() if secret in said] == []
