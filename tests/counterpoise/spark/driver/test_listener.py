"""A QueueListener's results for reports and events, good and bad. No Spark."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from counterpoise.errors import ServiceUnavailable
from counterpoise.flow.view import Owned, Warming
from counterpoise.logs import Bounds
from counterpoise.spark.channel.status import Handoffs, QueryStatus
from counterpoise.spark.driver.driver import ours
from counterpoise.spark.driver.listener import QueueListener, samples_of
from counterpoise.spark.offsets import Offset
from counterpoise.wire import Pause, ReleaseItem

NO_SPARK: Any = None  # only reports on request need one (test_leaving_queries)


def query_status(**changed: Any) -> QueryStatus:
    given: dict[str, Any] = {
        "queue": "flights",
        "url": "",
        "instance": "me",
        "status": "bound",
        "draining": False,
        "partitions": {
            0: Owned(0, 1, "owned", "5", "initial"),
            1: Owned(1, 2, "revoking", "7", "graceful"),
            3: Owned(3, 1, "owned", None, "initial"),
            4: Owned(4, 1, "owned", None, "initial"),
        },
        "warming": {2: Warming(2, 9, "4")},
        "positions": {0: "8", 1: "7", 3: None, 4: None},
        "bounds": Bounds(5, "log", {0: "0", 3: "2"}, {0: "20", 3: "6"}),
        "handoffs": Handoffs(),
    }
    return QueryStatus(**{**given, **changed})


def progress(report: dict[str, Any], batch: int = 0, run: str = "run") -> dict[str, Any]:
    end = Offset("flights", instance="me").to_json()
    source = {"description": "counterpoise", "endOffset": end, "latestOffset": report}
    other = {"description": "rate", "endOffset": 7, "latestOffset": None}
    return {"id": "id", "runId": run, "name": None, "batchId": batch, "sources": [other, source]}


def test_lag_is_counted_from_what_is_done_and_only_where_the_end_is_known() -> None:
    report = query_status().report()
    # Partition 3 has no position yet: it starts at the log's start, which was trimmed to 2.
    assert report["lag"] == {"0": 12, "3": 4}
    assert report["lagTotal"] == 16
    assert report["ends"] == {"0": "20", "3": "6"}
    assert (report["owned"], report["revoking"], report["warming"]) == (4, 1, 1)
    assert query_status(bounds=None).report()["lag"] == {}


def test_lag_has_the_names_of_sparks_kafka_source_too_and_a_line_for_people() -> None:
    report = query_status().report()
    names = [f"{which}OffsetsBehindLatest" for which in ("min", "max", "avg")]
    assert [report[name] for name in names] == [4, 12, 8.0]
    assert report["description"] == "queue flights (bound): 4 partitions, 16 messages behind"
    unknown = query_status(bounds=None, draining=True, last_error=ServiceUnavailable("no answer"))
    assert not unknown.report().keys() & {*names}
    assert unknown.report()["description"] == (
        "queue flights (bound, draining): 4 partitions, 0 messages behind; no answer"
    )


def test_what_an_administrator_has_paused_is_counted_beside_what_is_owned() -> None:
    held = Owned(0, 1, "owned", "5", "initial", paused=Pause(datetime.now(UTC), None, "why"))
    report = query_status(partitions={0: held, 1: Owned(1, 1, "owned", "5", "initial")}).report()
    assert (report["owned"], report["paused"]) == (2, 1)
    samples = samples_of({**report, "queue": "q", "instance": "i"})
    assert samples['counterpoise_source_paused_partitions{queue="q",instance="i"}'] == 1
    assert samples['counterpoise_source_partitions{queue="q",instance="i",state="owned"}'] == 2


def test_rows_that_the_watermark_drops_count_from_the_first_handoff_on() -> None:
    handoffs = Handoffs()
    handoffs.granted(Owned(0, 1, "owned", None, "initial"))
    handoffs.dropped_rows(3)
    handoffs.granted(Owned(0, 2, "owned", "5", "replaced"))
    handoffs.dropped_rows(4)
    assert handoffs.rows_dropped == 0, "its own rows, late by its own watermark"
    handoffs.granted(Owned(1, 2, "owned", "5", "graceful"))
    handoffs.dropped_rows(9)
    assert handoffs.rows_dropped == 5
    report = {**query_status(handoffs=handoffs).report(), "queue": "q", "instance": "i"}
    counted = 'counterpoise_source_rows_dropped_total{queue="q",instance="i"}'
    assert samples_of(report)[counted] == 5


def test_the_progress_says_which_partition_an_ordered_resize_stops_and_where() -> None:
    held = Owned(3, 1, "owned", "40", "initial", resize=2, cut="50", waits_for=(0, 2))
    reached = Owned(4, 1, "owned", "9", "initial", resize=2, cut="9", reached_cut=True)
    many = Owned(5, 1, "owned", "0", "initial", resize=2, cut="0", waits_for=tuple(range(10)))
    report = query_status(partitions={3: held, 4: reached, 5: many}).report()
    assert report["waits"] == {
        "3": "at 50 for 0, 2",
        "5": "at 0 for 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …",
    }
    assert query_status().report()["waits"] == {}


def test_a_view_has_the_newest_positions_and_says_what_is_warming_and_in_flight() -> None:
    view = query_status(in_flight=frozenset({1})).view()
    assert view["partitions"]["0"] == {
        "epoch": 1,
        "state": "owned",
        "position": "8",
        "handed_over": "initial",
    }
    assert view["partitions"]["2"]["state"] == "warming"
    assert view["inFlight"] == [1]


def test_forced_handoffs_are_counted_and_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    handoffs = Handoffs()
    handoffs.granted(Owned(0, 1, "owned", None, "initial"))
    handoffs.released(ReleaseItem(0, 1, "5"))
    handoffs.released(ReleaseItem(4, 1, "5", finished=True))
    with caplog.at_level(logging.WARNING, "counterpoise.spark"):
        handoffs.lost(Owned(1, 2, "owned", "7", "graceful"))
        assert not caplog.records
        handoffs.lost(Owned(2, 2, "revoking", "7", "graceful"))
    assert "partition 2 (epoch 2) was taken away at its deadline" in caplog.text
    report = query_status(handoffs=handoffs).report()
    assert report["received"] == {"initial": 1}
    assert (report["handoffsGraceful"], report["handoffsForced"]) == (1, 1)
    assert (report["partitionsLost"], report["partitionsFinished"]) == (1, 1)


def test_reports_become_samples() -> None:
    handoffs = Handoffs()
    handoffs.granted(Owned(0, 1, "owned", None, "orphaned"))
    report = {"queue": "flights", "instance": 'a"b\\c', **query_status(handoffs=handoffs).report()}
    samples = samples_of(report)
    labels = 'queue="flights",instance="a\\"b\\\\c"'
    assert samples[f"counterpoise_source_bound{{{labels}}}"] == 1
    assert samples[f'counterpoise_source_partitions{{{labels},state="owned"}}'] == 3
    assert samples[f'counterpoise_source_partitions{{{labels},state="warming"}}'] == 1
    assert samples[f'counterpoise_source_lag_messages{{{labels},partition="0"}}'] == 12
    assert samples[f'counterpoise_source_handoffs_total{{{labels},outcome="forced"}}'] == 0
    assert samples[f'counterpoise_source_received_total{{{labels},handed_over="orphaned"}}'] == 1


def test_the_callback_gets_every_report_and_the_log_what_has_changed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reports: list[dict[str, Any]] = []
    listener = QueueListener(NO_SPARK, reports.append)
    with caplog.at_level(logging.INFO, "counterpoise.spark"):
        listener.progressed(progress(query_status().report()))
        assert "owned=4" in caplog.text
        caplog.clear()
        listener.progressed(progress(query_status(positions={}).report(), batch=1))
        assert caplog.text == "", "lag alone is no news"
        listener.progressed(progress(query_status(partitions={}).report(), batch=2))
        assert "owned=0, revoking=0" in caplog.text
        listener.terminated("run")
        listener.terminated("run")
    assert [(one["batch"], one["queue"], one["query"]) for one in reports] == [
        (batch, "flights", "id") for batch in range(3)
    ]


def test_a_callback_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no")

    QueueListener(NO_SPARK, fail).progressed(progress(query_status().report()))
    assert "callback of a QueueListener failed" in caplog.text


@pytest.mark.parametrize(
    "sources", [None, [], [None], ["x"], [{}], [{"endOffset": "7"}], [{"endOffset": {"a": 1}}]]
)
def test_progress_of_other_sources_is_ignored(sources: object) -> None:
    assert ours({"sources": sources}) == []
