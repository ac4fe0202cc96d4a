"""Reports on the queries of a session, for people and monitoring: `QueueListener`.

    listener = QueueListener(spark)
    spark.streams.addListener(listener)
    ...
    listener.metrics()   # {'counterpoise_source_lag_messages{queue="flights",...}': 120.0, ...}

It gets an event for every micro-batch, and about every ten seconds for a query without work. It
passes on the source's reports (`report`). `reports` and `metrics` read the present state, so they
are right for an idle query too. No failure here ends a query.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from counterpoise.spark.channel.channel import channel_to, channels_of, refuse_connect
from counterpoise.spark.driver.driver import EventListener, ours
from counterpoise.spark.offsets import Json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("counterpoise.spark")

# Values whose changes are logged; lag and positions change all the time.
_NEWS = (
    *("status", "draining", "owned", "revoking", "retiring", "warming", "paused", "lastError"),
    *("handoffsGraceful", "handoffsForced", "partitionsLost", "skippedSlices", "takenOver"),
    "rowsDroppedAtLeast",
)
_STATES = ("revoking", "retiring", "warming")
_COUNTERS: Mapping[str, str] = {
    "skippedSlices": "skipped_slices_total",
    "takenOver": "taken_over_total",
    "rowsDroppedAtLeast": "rows_dropped_total",
}
_HANDOFFS: Mapping[str, str] = {
    "handoffsGraceful": "graceful",
    "handoffsForced": "forced",
    "partitionsLost": "lost",
    "partitionsFinished": "finished",
}


class QueueListener(EventListener):
    """Reports on the queues that the queries of a session read.

    `callback` is called with each report, on a thread of Spark's, so it must be quick; its
    exceptions are logged. A report has the values of `reportLatestOffset` (docs, *Progress*), with
    `queue`, `instance`, `query` (its name or id) and `batch` (None between micro-batches). Changes
    are logged to `counterpoise.spark` at `level`.
    """

    def __init__(
        self,
        spark: SparkSession,
        callback: Callable[[Json], None] | None = None,
        level: int = logging.INFO,
    ) -> None:
        """Raises Unsupported for a session of Spark Connect."""
        refuse_connect(spark, "QueueListener")
        self._session = spark
        self._callback = callback
        self._level = level
        self._lock = threading.Lock()
        self._told: dict[str, Json] = {}
        self._runs: dict[str, dict[str, Json]] = {}

    # ------------------------------------------------------------------ on request

    def reports(self) -> list[Json]:
        """The present report of each Counterpoise source in the session's running queries."""
        active = self._session.streams.active
        return [report for query in active for report in _reports_of(query)]

    def metrics(self) -> dict[str, float]:
        """The same as samples by name and labels, as Prometheus writes them.

        `counterpoise_source_` with: `bound`, `partitions{state}` (owned, revoking, retiring,
        warming), `paused_partitions` (each also in a state), `lag_messages{partition}`,
        `handoffs_total{outcome}` (graceful, forced, lost, finished), `received_total{handed_over}`,
        `skipped_slices_total`, `taken_over_total`, `rows_dropped_total` (a lower bound).
        """
        samples: dict[str, float] = {}
        for report in self.reports():
            samples.update(samples_of(report))
        return samples

    # ------------------------------------------------------------------ from Spark's events

    def progressed(self, progress: Json) -> None:
        run = self._runs.setdefault(str(progress["runId"]), {})
        for source in ours(progress):
            end, report = source["endOffset"], source.get("latestOffset")
            if not isinstance(report, dict):
                continue
            head = {
                "queue": end["queue"],
                "instance": end["instance"],
                "query": progress.get("name") or progress["id"],
            }
            run[end["instance"]] = head
            self._tell({**head, "batch": progress["batchId"], **report})

    def idle(self, run_id: str) -> None:
        for instance, head in self._runs.get(run_id, {}).items():
            view = channel_to(instance).get("view")
            if view is not None:
                self._tell({**head, "batch": None, **view["report"]})

    def terminated(self, run_id: str) -> None:
        for instance, head in self._runs.pop(run_id, {}).items():
            with self._lock:
                self._told.pop(instance, None)
            logger.log(self._level, "counterpoise: queue %s: the query has ended", head["queue"])

    def _tell(self, report: Json) -> None:
        news = {name: report[name] for name in _NEWS if name in report}
        with self._lock:
            before = self._told.get(report["instance"])
            self._told[report["instance"]] = news
        changed = {name: value for name, value in news.items() if (before or {}).get(name) != value}
        if before is None:
            changed = {name: value for name, value in changed.items() if value}
        if changed:
            said = ", ".join(f"{name}={value}" for name, value in changed.items())
            logger.log(self._level, "counterpoise: queue %s: %s", report["queue"], said)
        if self._callback is not None:
            try:
                self._callback(report)
            except Exception:
                logger.exception("counterpoise: the callback of a QueueListener failed")


def _reports_of(query: StreamingQuery) -> list[Json]:
    found = []
    for channel in channels_of(query) or ():
        view = channel.get("view")
        if view is not None:
            head = {name: view[name] for name in ("queue", "instance")}
            found.append({**head, "query": query.name or query.id, "batch": None, **view["report"]})
    return found


def samples_of(report: Json) -> dict[str, float]:
    """One report as samples; see `QueueListener.metrics`."""
    samples: dict[str, float] = {}

    def sample(name: str, value: object, **labels: object) -> None:
        all_labels = {"queue": report["queue"], "instance": report["instance"], **labels}
        said = ",".join(f'{label}="{_escaped(str(text))}"' for label, text in all_labels.items())
        samples[f"counterpoise_source_{name}{{{said}}}"] = float(str(value))

    sample("bound", int(report["status"] == "bound"))
    others = report["revoking"] + report["retiring"]
    sample("partitions", report["owned"] - others, state="owned")
    for state in _STATES:
        sample("partitions", report[state], state=state)
    sample("paused_partitions", report["paused"])
    for partition, behind in report["lag"].items():
        sample("lag_messages", behind, partition=partition)
    for name, outcome in _HANDOFFS.items():
        sample("handoffs_total", report[name], outcome=outcome)
    for how, count in report["received"].items():
        sample("received_total", count, handed_over=how)
    for name, counter in _COUNTERS.items():
        sample(counter, report[name])
    return samples


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
