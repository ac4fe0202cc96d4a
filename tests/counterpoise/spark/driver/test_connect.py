"""Over Spark Connect the source is registered; what needs the driver's JVM is refused by name.

The objects here only have the module of its classes; `test_connect_server` has a real server.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from counterpoise.spark import (
    CounterpoiseDataSource,
    QueueListener,
    drain,
    drain_on_sigterm,
    register,
)
from counterpoise.spark.channel.running_batch import RunningBatch
from counterpoise.spark.driver.connect import refuse, stateful_uses
from counterpoise.spark.errors import Unsupported


class OfConnect:
    """A session, a query or a DataFrame."""

    isActive = True  # noqa: N815

    def __init__(self) -> None:
        self.registered: list[Any] = []

    @property
    def dataSource(self) -> OfConnect:  # noqa: N802
        return self

    def register(self, source: Any) -> None:
        self.registered.append(source)

    def stop(self) -> None:
        pass


OfConnect.__module__ = "pyspark.sql.connect.session"


@pytest.mark.long  # needs the client of Spark Connect
def test_the_source_is_registered_and_a_warning_says_what_is_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = OfConnect()
    with caplog.at_level(logging.WARNING, "counterpoise.spark"):
        register(cast(Any, session))
    assert session.registered == [CounterpoiseDataSource]
    assert "over Spark Connect, drain, QueueListener and FencedSink do not work" in caplog.text


def test_what_needs_the_driver_is_refused_and_says_what_to_do_instead() -> None:
    it: Any = OfConnect()
    for attempt in (drain, drain_on_sigterm, QueueListener, RunningBatch.of):
        with pytest.raises(
            Unsupported, match=r"Spark Connect: .*counterpoise consumers drain QUEUE"
        ):
            attempt(it)


SOURCE = (
    "~StreamingRelationV2 org.apache.spark.PythonDataSourceV2@78b161ec, counterpoise, "
    "org.apache.spark.PythonTable@5918edf6, [{}url=*********(redacted), queue=flights], "
    "[partition#2, key#5], name=<Unassigned>"
)
RATE = "~StreamingRelationV2 org.apache.spark.RateStreamProvider@5, rate, Rate@d, [], [value#1L]"


def explained(*lines: str, **options: str) -> str:
    """A plan as Spark explains it. `source` stands for the leaf, with these options."""
    given = "".join(f"{name}={value}, " for name, value in options.items())
    text = "\n".join(lines).replace("source", SOURCE.format(given))
    return (
        "== Parsed Logical Plan ==\n'Aggregate ['key]\n== Analyzed Logical Plan ==\n"
        f"key: string, Count: bigint\n{text}\n\n== Optimized Logical Plan ==\n~Aggregate [key]"
    )


def found(*lines: str, **options: str) -> list[tuple[str, str]]:
    """What is written of each operator, and its queue."""
    uses = stateful_uses(explained(*lines, **options))
    return [(use.operator.written, use.options.queue) for use in uses]


def test_operators_with_state_are_found_in_the_text_of_a_plan() -> None:
    assert found("~Aggregate [key#5], [key#5]", "+- ~Project [key#5]", "   +- source") == [
        ("an aggregation (groupBy)", "flights")
    ]
    assert found("~Project [key#5]", "+- ~GlobalLimit 3", "   +- ~LocalLimit 3", "      +- source")
    assert found("~Join Inner", f":- {RATE}", "+- ~Project [key#5]", "   +- source")
    for name in ("Except false", "ExceptAll true"):
        assert found(f"~{name}", ":- source", "+- LocalRelation [key#5]")
    assert found("source") == []
    assert found("~Project [key#5]", "+- source") == []
    # A table that is aggregated, and a join with it.
    table = [":  +- Aggregate [key#5]", ":     +- LocalRelation [key#5]"]
    assert found("~Join Inner", ":- Project [key#5]", *table, "+- source") == []
    # State above the other source alone.
    union = ["~Union false, false", ":- ~Deduplicate [value#1L]", f":  +- {RATE}", "+- source"]
    assert found(*union) == []
    assert found("~Union false, false", ":- ~Deduplicate [key#5]", ":  +- source", f"+- {RATE}")
    # What a WITH names, which may name something else.
    names = ["~WithCTE", ":- ~CTERelationDef 4, false", ":  +- source"]
    names += [":- ~CTERelationDef 5, false", ":  +- ~Project [key#5]"]
    names += [":     +- ~CTERelationRef 4, true, [key#5], true, false"]
    reads = "   +- ~CTERelationRef 5, true, [key#5], true, false"
    assert found(*names, "+- ~Aggregate [key#5], [key#5]", reads) == [
        ("an aggregation (groupBy)", "flights")
    ]
    assert found(*names, "+- ~Project [key#5]", reads) == []


def test_a_processor_needs_a_source_that_restores_it() -> None:
    in_processing, in_event_time = (
        (f"~TransformWithStateInPySpark f(a#1)#5, 1, Append, {mode}, row", ":- source", "+- Local")
        for mode in ("NoTime", "EventTime")
    )
    assert found(*in_processing, warmup="true") == []
    assert "without warm-up" in found(*in_processing)[0][0]
    assert "without warm-up" in found(*in_processing, warmup="true", warmupFrom="snapshot")[0][0]
    assert "EventTime" in found(*in_event_time, warmup="true")[0][0]


@pytest.mark.long  # needs the client of Spark Connect
def test_a_query_that_ends_by_itself_needs_a_server_that_tells_the_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before PySpark 4.2 it would end at once, and have read nothing."""

    def start(version: str, ends: bool, *plan: str) -> None:
        frame = SimpleNamespace(_explain_string=lambda extended: explained(*plan))
        monkeypatch.setattr("pyspark.sql.connect.dataframe.DataFrame", lambda *_: frame)
        writer = SimpleNamespace(
            _write_stream=SimpleNamespace(_child=None),
            _session=SimpleNamespace(version=version),
            _write_proto=SimpleNamespace(available_now=ends, once=False),
        )
        refuse(writer)

    with pytest.raises(Unsupported, match=r"availableNow=True.*PySpark 4\.2.*this is 4\.1\.4"):
        start("4.1.4", True, "source")
    start("4.1.4", True, RATE)
    start("4.1.4", False, "source")
    start("4.2.1", True, "source")


def test_the_loss_is_accepted_by_name() -> None:
    (use,) = stateful_uses(explained("~Deduplicate [key#5]", "+- source", stateOnHandoff="lose"))
    assert use.options.state_on_handoff == "lose"
