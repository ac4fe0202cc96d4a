"""Metrics for Prometheus: requests, results of flows' calls, commits, queues.

Every application has its own registry, so that two services in one process count separately. Paths
are route templates, never names: the number of series does not depend on the requests.
"""

import collections
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.streams import OpenCalls
from broker.calls.views import QueueView, Result
from broker.mailbox.tally import Tally

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0, 60.0)
STATUSES = ("Ready", "Holddown", "Rebalancing")


class Metrics:
    """The metrics of one application."""

    def __init__(self, open_calls: OpenCalls, tally: Tally) -> None:
        self.registry = CollectorRegistry()
        for collector in tally.collectors:
            self.registry.register(collector)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        Gauge(
            "counterpoise_build_info",
            "1; the label says which version of the service this is.",
            ("version",),
            registry=self.registry,
        ).labels(_version()).set(1)
        self._requests = Counter(
            "counterpoise_http_requests",
            "Requests answered.",
            ("method", "path", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "counterpoise_http_request_seconds",
            "From a request's arrival to the end of its answer; long polls wait by design.",
            ("method", "path"),
            buckets=SECONDS,
            registry=self.registry,
        )
        self._results = Counter(
            "counterpoise_flow_results",
            "Partitions named in commit, release and ready, by outcome.",
            ("call", "outcome"),
            registry=self.registry,
        )
        open_gauge = Gauge(
            "counterpoise_http_open_calls",
            "Long polls and event streams that are open.",
            registry=self.registry,
        )
        open_gauge.set_function(lambda: len(open_calls))
        self._queue_gauges = {
            "partition_count": self._gauge("partitions", "Configured partitions."),
            "operational_partition_count": self._gauge(
                "operational_partitions", "Partitions, retiring ones included."
            ),
            "flow_count": self._gauge("flows", "Bound flows."),
            "active_flow_count": self._gauge("active_flows", "Flows that own a partition."),
            "revision": self._gauge("revision", "The queue's revision."),
        }
        self._status = self._gauge("rebalance_status", "1 for the current status.", "status")

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"counterpoise_queue_{name}", text, ("queue", *labels), registry=self.registry)

    def count_request(self, method: str, path: str, status: int, seconds: float) -> None:
        self._requests.labels(method, path, str(status)).inc()
        self._seconds.labels(method, path).observe(seconds)

    def count_results(self, call: str, results: Iterable[Result]) -> None:
        for outcome, count in collections.Counter(result.outcome for result in results).items():
            self._results.labels(call, outcome).inc(count)

    def exposition(self, queues: Iterable[QueueView]) -> bytes:
        """All metrics in Prometheus' text format; the gauges cover only `queues`."""
        for gauge in (*self._queue_gauges.values(), self._status):
            gauge.clear()
        for queue in queues:
            for attribute, gauge in self._queue_gauges.items():
                gauge.labels(queue.name).set(getattr(queue, attribute))
            for status in STATUSES:
                self._status.labels(queue.name, status).set(status == queue.rebalance_status)
        return generate_latest(self.registry)


class CountRequests:
    """ASGI middleware: counts and times every request under its route's path template."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            path = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self.metrics.count_request(method, path, status, time.perf_counter() - started)


_METHODS = frozenset(("GET", "POST", "PATCH", "PUT", "DELETE", "HEAD", "OPTIONS"))


def _version() -> str:
    """The installed version of the service."""
    try:
        return version("counterpoise-server")
    except PackageNotFoundError:
        return "unknown"
