"""Which writes are refused, and why; without a session."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace as Object
from typing import Any

import pytest
from pyspark.sql.types import StructType

from counterpoise.client import Client
from counterpoise.errors import QueueNotFound, ServiceUnavailable
from counterpoise.spark import CounterpoiseDataSource, QueueSink
from counterpoise.spark.channel.channel import Channel
from counterpoise.spark.channel.running_batch import PlanWriter
from counterpoise.spark.driver.chains import Chain, chains_in, describe, put_chain
from counterpoise.spark.errors import InvalidOption, InvalidRows, InvalidSink, Unsupported
from counterpoise.spark.offsets import Offset
from counterpoise.spark.writer import target
from counterpoise.spark.writer.numbering import Input
from counterpoise.spark.writer.options import WriteOptions, write_options
from counterpoise.spark.writer.target import target_of
from counterpoise.spark.writer.writers import Written, input_of
from tests.service import Service

PLAIN = StructType().add("value", "string")
PLACED = StructType().add("value", "string").add("partition", "integer").add("position", "string")


@pytest.mark.parametrize(
    ("options", "schema", "overwrite", "said"),
    [
        ({"queue": "out", "name": "x"}, PLAIN, False, "of a batch write needs 'repeatable'"),
        ({"queue": "out"}, PLAIN, True, "only appended to"),
        ({"queue": "out"}, PLACED, False, "QueueSink"),
        ({"queue": "out", "warmup": "true"}, PLAIN, False, "unknown option 'warmup'"),
    ],
)
def test_a_batch_write_that_cannot_be_meant_is_refused(
    options: dict[str, str], schema: StructType, overwrite: bool, said: str
) -> None:
    with pytest.raises((InvalidOption, InvalidRows, Unsupported), match=said):
        CounterpoiseDataSource(options).writer(schema, overwrite)


@pytest.mark.parametrize(
    ("options", "schema", "said"),
    [
        ({"name": "x"}, PLAIN, "known by the query's checkpoint"),
        ({"repeatable": "true"}, PLACED, "each message is written once anyway"),
    ],
)
def test_a_stream_refuses_options_that_do_nothing(
    options: dict[str, str], schema: StructType, said: str
) -> None:
    source = CounterpoiseDataSource({"queue": "out", "checkpointLocation": "/x", **options})
    with pytest.raises(InvalidOption, match=said):
        source.streamWriter(schema, False)


def test_a_queue_that_is_not_there_is_named(service: Service) -> None:
    source = CounterpoiseDataSource({"queue": "none", "url": service.url})
    with pytest.raises(QueueNotFound, match="none"):
        source.writer(PLAIN, False)


class Clock:
    """Time that passes only while something sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(target, "time", clock)
    return clock


def test_a_service_that_is_away_is_waited_for(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    client.create_queue("out", 1)
    away = [ServiceUnavailable("away"), ServiceUnavailable("over its rate", retry_after=30.0)]
    away.append(ServiceUnavailable("for a batch"))
    real = Client.log_access

    def log_access(*arguments: Any, **options: Any) -> Any:
        if away:
            raise away.pop()
        return real(*arguments, **options)

    monkeypatch.setattr(Client, "log_access", log_access)
    with pytest.raises(ServiceUnavailable, match="for a batch"):
        target_of(WriteOptions("out", service.url), waits=False)
    assert target_of(WriteOptions("out", service.url), waits=True).view.partition_count == 1
    assert not away
    assert 30 < clock.now < 31


def test_a_service_that_stays_away_fails_the_write_when_its_time_is_up(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    def log_access(*_: object) -> Any:
        raise ServiceUnavailable("away")

    monkeypatch.setattr(Client, "log_access", log_access)
    with pytest.raises(ServiceUnavailable, match="away"):
        target_of(WriteOptions("out", "http://127.0.0.1:1", write_timeout_seconds=50), waits=True)
    assert 40 < clock.now < 50


def test_options_of_spark_are_no_options_of_ours() -> None:
    given = {"checkpointLocation": "/tmp/x", "queryName": "x", "QUEUE": "out"}
    assert write_options(given).queue == "out"
    with pytest.raises(InvalidOption, match="did you mean 'name'"):
        write_options({"queue": "out", "nam": "x"})
    with pytest.raises(InvalidOption, match="'queue' is missing: name the queue to write to"):
        write_options({"checkpointLocation": "/tmp/x"})
    with pytest.raises(InvalidOption, match="is one of false, true"):
        write_options({"queue": "out", "repeatable": "perhaps"})


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 81, "\u00e9" * 41])
def test_names_that_do_not_fit_are_refused(name: str) -> None:
    with pytest.raises(InvalidOption, match="1 to 80 bytes"):
        write_options({"queue": "out", "name": name})
    with pytest.raises(InvalidSink, match="1 to 80 bytes"):
        QueueSink("out", name=name)


def test_an_option_of_a_write_for_a_read_is_refused_there() -> None:
    source = CounterpoiseDataSource({"queue": "in", "checkpointLocation": "/x"})
    with pytest.raises(InvalidOption, match="unknown option 'checkpointLocation'"):
        source.schema()


def test_a_secret_is_not_shown(service: Service, client: Client) -> None:
    client.create_queue("out", 1)
    options = {"queue": "out", "url": service.url, "logUrl": "postgresql://u:hunter2@h/d"}
    writer = CounterpoiseDataSource(options).writer(PLAIN, False)
    assert "hunter2" not in repr(vars(writer))
    assert "password" not in repr(vars(writer)["_target"])


@pytest.mark.parametrize("options", [{}, {"repeatable": "true"}])
def test_a_stream_that_may_write_twice_says_so_once(
    service: Service, client: Client, caplog: pytest.LogCaptureFixture, options: dict[str, str]
) -> None:
    client.create_queue("out", 1)
    given = {"queue": "out", "url": service.url, "checkpointLocation": "/x", **options}
    for schema in (PLAIN, PLACED):
        if schema is PLAIN or not options:
            writer = CounterpoiseDataSource(dict(given)).streamWriter(schema, False)
            writer.commit([Written(1, 0), None], 0)
            writer.commit([Written(1, 0)], 1)
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len(said) == (0 if options else 1)
    assert all("written to queue out twice: pass the columns" in one for one in said)


# ------------------------------------------------------------------ chains


def test_a_task_without_its_query_writes_nothing() -> None:
    known = Chain("flights", None, "id", "log")
    for chains, said in (
        ({}, "reads no counterpoise source"),
        ({"other": known}, "reads no counterpoise source"),
        ({"query": Chain("flights", "the operator Aggregate may move rows")}, "Aggregate.*Queue"),
        ({"query": Chain("flights")}, "not written the plan"),
    ):
        with pytest.raises(Unsupported, match=said):
            input_of("query", chains)
    assert input_of("query", {"query": known}) == Input("id", "log")


def test_the_newest_plan_of_a_queue_names_its_input(tmp_path: Path) -> None:
    home = str(tmp_path)
    assert chains_in(None) == chains_in(home) == {}
    put_chain(home, "query", Chain("flights"))
    put_chain(home, "mixed", Chain(None, "several"))
    assert chains_in(home) == {"query": Chain("flights"), "mixed": Chain(None, "several")}
    for source, queue in (("1", "flights"), ("2", "other"), ("3", "flights")):
        say_plan(home, source, queue, None)
    assert chains_in(home)["query"] == Chain("flights", None, "id3", "log3")
    Channel(home, "3").drop("plan")
    assert chains_in(home)["query"] == Chain("flights", None, "id1", "log1")


@pytest.mark.parametrize(
    ("given", "queue", "url"),
    [
        ({"queue": "flights"}, "flights", None),
        ({"queue": " flights ", "url": " "}, "flights", None),
        ({"queue": "flights", "url": "http://one.test\n"}, "flights", "http://one.test"),
    ],
)
def test_the_options_of_a_chain_are_read_as_the_source_reads_them(
    given: dict[str, str], queue: str, url: str | None
) -> None:
    """Else its plan, which has what the source has read, would not be found."""
    leaf = Object(
        nodeName=lambda: "StreamingRelationV2",
        sourceName=lambda: "counterpoise",
        extraOptions=lambda: given,
        children=lambda: Object(size=lambda: 0),
    )
    leaves = [leaf]
    leaf.collectLeaves = lambda: Object(
        iterator=lambda: Object(hasNext=lambda: bool(leaves), next=leaves.pop)
    )
    assert describe(leaf) == Chain(queue, url=url)


def test_queues_of_one_name_at_two_services_are_two_inputs(tmp_path: Path) -> None:
    home, one, other = str(tmp_path), "http://one.test", "http://other.test"
    for query, url in (("a", one), ("b", other)):
        put_chain(home, query, Chain("events", url=url))
    say_plan(home, "1", "events", one)
    with pytest.raises(Unsupported, match="not written the plan"):
        input_of("b", chains_in(home))
    say_plan(home, "2", "events", other)
    chains = chains_in(home)
    assert [input_of(query, chains) for query in ("a", "b")] == [
        Input("id1", "log1"),
        Input("id2", "log2"),
    ]


def say_plan(home: str, source: str, queue: str, url: str | None) -> None:
    end = Offset(queue).to_json()
    PlanWriter(Channel(home, source), f"id{source}", f"log{source}", url).say(end, end, (), ())
