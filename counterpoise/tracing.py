"""Traces of a program's calls and of what it reads (docs/tracing.md).

Every call of the service is a span, and carries its place in the trace to the service (W3C
`traceparent`). Spans have the names of OpenTelemetry's conventions for HTTP and messaging.

Without a tracer provider nothing is done. Nothing is loaded: a program that has configured
OpenTelemetry has loaded it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from opentelemetry.trace import Span

NAME = "counterpoise"
_PLACE = re.compile(r"/queues/([^/]+)(?:/flows/([^/]+))?")
# What is between the names of queues and flows, and so the same for all of them.
_TEMPLATE = re.compile(r"(?<=/)(queues|flows)/[^/]+")


def _api() -> Any:
    """The module `opentelemetry.trace` if the program has configured it."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return trace


class CallSpan:
    """The span of one call; it does nothing where nothing is traced."""

    def __init__(self, span: Span | None = None) -> None:
        self._span = span

    def answered(self, status: int) -> None:
        """The service has answered with this HTTP status."""
        if self._span is not None:
            self._span.set_attribute("http.response.status_code", status)
            if status >= 400:
                self._span.set_attribute("error.type", str(status))
                trace = _api()
                self._span.set_status(trace.StatusCode.ERROR)


@contextmanager
def call(
    method: str, root: str, path: str, headers: MutableMapping[str, str]
) -> Iterator[CallSpan]:
    """The span of a call of the service at `root`; `headers` get its place in the trace."""
    trace = _api()
    if trace is None:
        yield CallSpan()
        return
    from opentelemetry import propagate

    parts = urlsplit(root)
    template = parts.path + _TEMPLATE.sub(lambda found: f"{found[1]}/{{{found[1][:-1]}}}", path)
    attributes: dict[str, Any] = {
        "http.request.method": method,
        "url.template": template,
        "url.full": root + path,
        "server.address": parts.hostname or "",
        "server.port": parts.port or (443 if parts.scheme == "https" else 80),
    }
    place = _PLACE.match(path)
    if place is not None:
        attributes |= {"counterpoise.queue": place[1]}
        if place[2] is not None:
            attributes |= {"counterpoise.flow": place[2]}
    with trace.get_tracer(NAME).start_as_current_span(
        f"{method} {template}", kind=trace.SpanKind.CLIENT, attributes=attributes
    ) as span:
        propagate.inject(headers)
        yield CallSpan(span)


@contextmanager
def reading(queue: str, partition: int, position: str) -> Iterator[ReadSpan]:
    """The span of a read of the log from `position`; dropped if nothing was read."""
    trace = _api()
    if trace is None:
        yield ReadSpan()
        return
    span = ReadSpan(
        trace.get_tracer(NAME).start_span(
            f"receive {queue}",
            kind=trace.SpanKind.CLIENT,
            attributes={
                "messaging.system": NAME,
                "messaging.operation.type": "receive",
                "messaging.destination.name": queue,
                "messaging.destination.partition.id": str(partition),
                "counterpoise.position": position,
            },
        )
    )
    with trace.use_span(span.span, end_on_exit=True):
        yield span


class ReadSpan:
    """The span of one read of a log; it does nothing where nothing is traced."""

    def __init__(self, span: Span | None = None) -> None:
        self.span = span

    def found(self, messages: int, end: str) -> None:
        """So many messages were read, up to this position."""
        if self.span is not None:
            self.span.set_attribute("messaging.batch.message_count", messages)
            self.span.set_attribute("counterpoise.end", end)
