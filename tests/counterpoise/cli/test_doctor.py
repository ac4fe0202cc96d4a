"""`counterpoise doctor`: what is wrong, and what to do."""

import json
import sys
import threading
import uuid
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from counterpoise import __version__
from counterpoise.cli import doctor
from counterpoise.client import Client
from counterpoise.conditions import report
from counterpoise.consumer import Consumer, Retry
from counterpoise.errors import Forbidden
from counterpoise.keys import partition_of
from counterpoise.logs.builtin import connection
from counterpoise.wire import Condition
from tests.counterpoise.cli.conftest import run_at
from tests.counterpoise.faulty import Answer, FaultyService, faulty_service
from tests.eventual import eventually


def examined(url, *options, code=0):
    """Each check's state and what was found, with the advice."""
    found = json.loads(run_at(url, "doctor", "--json", *options, code=code).stdout)
    return {one["check"]: (one["state"], f"{one['found']} {one['advice']}") for one in found}


def test_where_everything_is_fine_it_says_so(run, service):
    run("queues", "create", "a", "-p", "2", "--rebalance-delay", "0")
    run("publish", "a", "-q", stdin="x\n")
    found = examined(service.url)
    assert {check: state for check, (state, _) in found.items()} == {
        "program": "fine",
        "service": "fine",
        "database": "fine",
        "clocks": "fine",
        "versions": "fine",
        "log of a": "warning",
        "spark": "fine",
        "java": "fine",
    }
    assert "1 message behind, and no consumer is bound" in found["log of a"][1]
    assert __version__ in found["versions"][1]
    assert "builtin:a can be read" in run("doctor").output


@pytest.mark.long
def test_an_idle_queue_needs_no_consumer(run, service):
    run("queues", "create", "a", "-p", "2", "--rebalance-delay", "0")
    [(state, said)] = [
        found for check, found in examined(service.url).items() if check == "log of a"
    ]
    assert state == "fine"
    assert "no consumer is bound and none is needed" in said


@pytest.mark.long
def test_it_says_what_an_administrator_holds_still(run, service):
    run("queues", "create", "a", "-p", "3", "--rebalance-delay", "0")
    assert "a: paused" not in examined(service.url)
    run("queues", "pause", "a", "--partition", "0", "--partition", "2")
    state, said = examined(service.url)["a: paused"]
    assert (state, said[:19]) == ("warning", "2 paused partitions")
    run("queues", "pause", "a", "--reason", "wrong prices")
    assert "the queue is paused (wrong prices)" in examined(service.url)["a: paused"][1]


@pytest.mark.long
def test_it_says_where_no_wake_up_arrives(run, service, monkeypatch):
    """As through a pooler, which has numbers of its own for the server's processes."""
    run("queues", "create", "a", "-p", "2", "--rebalance-delay", "0")
    run("queues", "create", "b", "-p", "1")
    run("queues", "create", "beside", "--log", "builtin:a", "--align-with", "b")
    assert not {"wake-ups of a", "wake-ups of beside"} & examined(service.url).keys()
    monkeypatch.setattr(connection, "_WHOSE", "SELECT 0, pg_is_in_recovery()")
    state, said = examined(service.url)["wake-ups of a"]
    assert state == "warning"
    assert "connection pooler" in said


@pytest.mark.long
def test_it_says_that_a_user_of_redis_may_not_wait(run, service, redis_server):
    name = uuid.uuid4().hex
    run("queues", "create", "a", "-p", "2", "--log", redis_server.log(name))
    with redis_server.client() as admin:
        admin.execute_command("ACL", "SETUSER", name, "on", ">secret", "~*", "+@all", "-xread")
        user = {"COUNTERPOISE_LOG_URL": f"redis://{name}:secret@{redis_server.address}"}
        said = json.loads(run("doctor", "--json", environment=user).stdout)
        assert "wake-ups of a" not in examined(service.url)
        admin.execute_command("ACL", "DELUSER", name)
    [one] = [one for one in said if one["check"] == "wake-ups of a"]
    assert (one["state"], "+@read" in one["advice"]) == ("warning", True)


@pytest.mark.long
def test_it_names_a_log_that_this_machine_does_not_reach(run, service):
    run("queues", "create", "a", "-p", "2")
    run("queues", "create", "b", "-p", "2")
    elsewhere = {"COUNTERPOISE_LOG_URL": "postgresql://u:p@127.0.0.1:9/x"}
    said = run("doctor", "--json", "--queue", "a", code=1, environment=elsewhere).stdout
    found = json.loads(said)
    [log] = [one for one in found if one["check"].startswith("log of")]
    assert (log["check"], log["state"]) == ("log of a", "wrong")
    assert "check that this machine reaches builtin:a" in log["found"]


@pytest.mark.long
def test_it_asks_no_cluster_whose_log_it_could_not_look_at(run, service, monkeypatch):
    """A viewer's key does not open it, and Kafka's client may not be installed here."""

    def refused(client, queue):
        raise Forbidden("not for viewers", 403)

    monkeypatch.setattr(doctor, "lag_of", refused)
    monkeypatch.setattr(doctor, "kind_of", lambda _: "kafka")
    monkeypatch.setitem(sys.modules, "counterpoise.logs.kafka", None)
    run("queues", "create", "a", "-p", "1")
    assert examined(service.url)["log of a"][0] == "skipped"


@pytest.mark.long
def test_it_names_positions_that_retention_has_passed(run, service, kafka):
    name = uuid.uuid4().hex
    kafka.create_topic(name, 2)
    run("queues", "create", name, "--log", kafka.log(name))
    run("publish", name, "-q", "--key", "k", stdin="a\nb\nc\nd\n")
    number = partition_of("k", 2)
    with Client(service.url) as client:
        client.set_positions(name, {number: "1"})
        kafka.delete_records(name, number, 3)
        state, said = examined(service.url, code=1)[f"log of {name}"]
        assert state == "wrong"
        assert f"Partition {number} begins at 3, its position is 1" in said
        assert f"set {name} earliest --partition {number} --dry-run" in said
        client.set_positions(name, {number: "3"})
    assert examined(service.url)[f"log of {name}"][0] == "warning"


@pytest.mark.long
def test_lag_and_doctor_show_what_consumers_report(run, service):
    run("queues", "create", "a", "-p", "2", "--rebalance-delay", "0")
    with Client(service.url) as client:
        mine = client.bind("a", "billing", lease_seconds=600)
        poison = Condition("quarantined", "at 7: [red]ValueError[/red]", 1, 1)
        client.send(report("a", mine.flow_id, mine.flow_token, [poison], 1))
        said = " ".join(run("lag", "a").output.split())
        assert "p1 quarantined at billing for" in said
        assert "[red]ValueError[/red]" in said
        [told] = json.loads(run("lag", "a", "--json").output)["conditions"]
        assert (told["kind"], told["partition"]) == ("quarantined", 1)
        state, said = examined(service.url, code=1)["a: quarantined"]
    assert state == "wrong"
    assert "partition 1, billing: at 7: [red]ValueError[/red]" in said


@pytest.mark.long
def test_it_says_what_is_set_aside_in_a_retry_queue(run, service):
    for queue in ("flights", "later"):
        run("queues", "create", queue, "-p", "2", "--rebalance-delay", "0")
    run("publish", "flights", "-q", "--key-separator", ":", stdin="k:bad\nk:behind\nother:good\n")

    def handle(message):
        if message.value == b"bad":
            raise ConnectionError("the seats are away")

    policy = Retry("later", after_seconds=[3600])
    consumer = Consumer("flights", each=handle, on_poison=policy, url=service.url)
    thread = threading.Thread(target=consumer.run)
    thread.start()
    try:
        eventually(lambda: consumer.set_aside == 2)
        found = examined(service.url)
        assert found["log of later"][0] == "fine"
        state, said = found["retries in later"]
        assert (state, "retries in flights" in found) == ("warning", False)
        assert "2 messages of flights wait to be tried again, the oldest for " in said
        assert "'counterpoise peek later' shows them" in said
    finally:
        consumer.stop()
        thread.join(60)
    eventually(lambda: run("queues", "list", "--json").output.count('"flow_count": 0') == 2)
    found = examined(service.url, "--queue", "later")
    # Any other consumer would pass what waits, so nobody is told to start one.
    assert found["log of later"][0] == "fine"
    assert "start one of flights with Retry('later', …)" in found["retries in later"][1]


def test_it_names_a_queue_that_is_not_there(service):
    state, said = examined(service.url, "--queue", "a", code=1)["queues"]
    assert state == "wrong"
    assert "counterpoise queues list" in said


def test_without_a_service_it_says_how_to_start_one():
    found = examined("http://127.0.0.1:9", code=1)
    assert found["service"][0] == "wrong"
    assert "start one with 'counterpoise serve'" in found["service"][1]
    assert not {"database", "clocks", "versions", "queues"} & found.keys()


@pytest.fixture
def faulty():
    with faulty_service() as server:
        yield server


def test_a_stranger_at_the_address_is_not_taken_for_the_service(faulty: FaultyService):
    faulty.script = lambda seen: Answer(200, None, text="<html>hello</html>")
    assert "does not look like Counterpoise" in examined(faulty.url, code=1)["service"][1]


def test_a_service_without_its_database_and_of_another_version(faulty: FaultyService):
    def script(seen):
        if seen.path == "/readyz":
            problem = {"code": "unavailable", "detail": "The database is not reachable."}
            return Answer(503, problem)
        if seen.path == "/metrics":
            return Answer(200, None, text='counterpoise_build_info{version="0.0.9"} 1.0\n')
        return Answer(401, {"code": "unauthorized", "detail": "No key was sent."})

    faulty.script = script
    found = examined(faulty.url, code=1)
    assert found["database"][0] == "wrong"
    assert "The database is not reachable." in found["database"][1]
    assert found["versions"][0] == "warning"
    assert f"the service is 0.0.9, this program is {__version__}" in found["versions"][1]
    assert found["queues"][0] == "wrong"
    assert "set COUNTERPOISE_TOKEN" in found["queues"][1]


@pytest.mark.parametrize(
    ("ahead_seconds", "says"),
    [
        (0, "the same time"),
        (2.5, "the same time"),
        (300, "300 s ahead"),
        (-300, "300 s behind"),
    ],
)
def test_clocks_that_are_apart_are_named(ahead_seconds, says):
    told = datetime(2026, 11, 20, 10, tzinfo=UTC)
    # The time within the second that a `Date` names is not known.
    asked_at = told.timestamp() + 0.5 + ahead_seconds
    found = doctor._clocks(format_datetime(told, usegmt=True), asked_at - 0.1, asked_at + 0.1)
    assert says in found.found
    assert found.state == ("fine" if says == "the same time" else "warning")
    assert doctor._clocks(None, 0, 0).state == "skipped"


def test_spark_without_java_or_parts_of_it(monkeypatch, service):
    monkeypatch.setattr("counterpoise.spark.driver.environment.ensure_java", lambda: None)
    monkeypatch.setattr(doctor, "_lacks", lambda module: module == "pandas")
    found = examined(service.url, code=1)
    assert "no Java 17 or newer" in found["java"][1]
    assert "without pandas pip install" in found["spark"][1]
    monkeypatch.setattr(
        doctor, "_installed", lambda package: "3.5.8" if package == "pyspark" else None
    )
    assert (
        "PySpark 3.5.8 does not do: PySpark 4.0 or later"
        in examined(service.url, code=1)["spark"][1]
    )
    monkeypatch.setattr(doctor, "_installed", lambda package: None)
    assert examined(service.url)["spark"][0] == "skipped"
