"""Traces of what is decided and committed, and of handoffs (docs/tracing.md).

**One trace for one rebalance.** It is that of the call which triggered it (a bind, a drain, ...).
The spans of a commit follow the call that asked for it. What a timer commits (the rebalance after a
holddown, a forced handoff) and every handoff follow the call that triggered the rebalance. The span
of a handoff has a link to the commit that ended it, which is in the trace of the owner's release.

Any replica may commit the next step. So the id of a transaction, which is stored with its records,
ends with the place of its span in the trace (a W3C `traceparent`). Other replicas read it there.

Without a tracer provider nothing is done. Nothing is loaded: a program that has configured
OpenTelemetry has loaded it.
"""

from __future__ import annotations

import os
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from broker.core import records as r
from broker.core.records import Entry
from broker.store.ports import Commit, Positions, QueueGone, Store

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanContext, Tracer

# Queues whose rebalances are remembered; they are forgotten when they finish.
MOST_QUEUES = 10_000
# Calls of one commit that have a link each; the first is the parent.
MOST_LINKS = 100
_SEPARATOR = ";"
_PROVIDER_IS_NAMED = "OTEL_PYTHON_TRACER_PROVIDER" in os.environ


def api() -> Any:
    """The module `opentelemetry.trace` if the program has configured it."""
    trace = sys.modules.get("opentelemetry.trace")
    # Without a provider `get_tracer_provider` looks at the environment, which takes longer than
    # most of what a request needs besides.
    if trace is None or (
        not _PROVIDER_IS_NAMED and getattr(trace, "_TRACER_PROVIDER", trace) is None
    ):
        return None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return trace


class TracedCall(NamedTuple):
    """The span in which something was asked, and when (ns since 1970)."""

    span: SpanContext
    at: int


def traced_call() -> TracedCall | None:
    """The present call; None if it is not traced."""
    trace = api()
    if trace is None:
        return None
    span = trace.get_current_span().get_span_context()
    return TracedCall(span, time.time_ns()) if span.is_valid else None


def traced(store: Store) -> Store:
    """The store of one replica, with spans of its commits and of the handoffs that they end."""
    return cast(Store, _TracedStore(store))


@dataclass(slots=True)
class _Spans:
    """OpenTelemetry, and how spans are made with it."""

    trace: Any

    @property
    def tracer(self) -> Tracer:
        return cast("Tracer", self.trace.get_tracer("counterpoise"))

    def under(self, span: SpanContext | None) -> Context:
        from opentelemetry.context import Context

        if span is None:
            return Context()
        context = self.trace.set_span_in_context(self.trace.NonRecordingSpan(span), Context())
        return cast("Context", context)

    def links(self, spans: Sequence[SpanContext]) -> list[Link]:
        each = {(span.trace_id, span.span_id): span for span in spans}
        return [self.trace.Link(span) for span in each.values()][:MOST_LINKS]


class _TracedStore:
    def __init__(self, store: Store) -> None:
        self._store = store
        # Of queues that are being rebalanced: the span that their handoffs follow.
        self._rebalances: OrderedDict[str, SpanContext] = OrderedDict()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, commit: Commit) -> Positions:
        trace = api()
        if trace is None:
            return await self._store.commit(commit)
        spans = _Spans(trace)
        with self._committing(spans, commit) as span:
            try:
                positions = await self._store.commit(commit)
            except QueueGone:
                self._rebalances.pop(commit.queue.id, None)
                raise
        self._ended(spans, commit, span)
        self._follow(commit.queue.id, commit.entries, span)
        return positions

    async def entries_after(
        self, queue_id: str, revision: int, limit: int | None = None
    ) -> Sequence[Entry]:
        entries = await self._store.entries_after(queue_id, revision, limit)
        if (trace := api()) is not None:
            for entry in entries:
                self._follow(queue_id, (entry,), _span_of(trace, entry.commit_id))
        return entries

    @contextmanager
    def _committing(self, spans: _Spans, commit: Commit) -> Iterator[SpanContext]:
        """The spans `decide` (since the first was asked) and `commit`; gives that of the commit."""
        calls = [one for one in commit.asked if isinstance(one, TracedCall)]
        rebalance = self._rebalances.get(commit.queue.id)
        parent = calls[0].span if calls else rebalance
        others = [one.span for one in calls[1:]]
        if rebalance is not None and calls:
            others.append(rebalance)
        about: dict[str, str | int] = {
            "counterpoise.queue": commit.queue.name,
            "counterpoise.revision": commit.queue.revision,
        }
        if calls:
            decide = spans.tracer.start_span(
                "decide",
                spans.under(parent),
                start_time=min(one.at for one in calls),
                attributes={**about, "counterpoise.calls": len(calls)},
            )
            decide.end()
        span = spans.tracer.start_span(
            "commit",
            spans.under(parent),
            kind=spans.trace.SpanKind.CLIENT,
            attributes={**about, "db.system.name": "postgresql"},
            links=spans.links(others),
        )
        place = span.get_span_context()
        if span.is_recording():
            commit.commit_id += _SEPARATOR + _traceparent(place)
        with spans.trace.use_span(span, end_on_exit=True):
            yield place

    def _ended(self, spans: _Spans, commit: Commit, span: SpanContext) -> None:
        """The spans of the handoffs that ended with this commit."""
        now = time.time_ns()
        context = spans.under(self._rebalances.get(commit.queue.id))
        grants = (
            grant
            for entry in commit.entries
            for record in entry.records
            if isinstance(record, r.Granted)
            for grant in record.grants
            if grant.by_handoff and grant.seconds is not None
        )
        for grant in grants:
            handoff = spans.tracer.start_span(
                "handoff",
                context,
                start_time=now - round((grant.seconds or 0.0) * 1e9),
                attributes={
                    "counterpoise.queue": commit.queue.name,
                    "counterpoise.partition": grant.partition,
                    "counterpoise.epoch": grant.epoch,
                    "counterpoise.owner": grant.previous or "",
                    "counterpoise.successor": grant.flow_id,
                    "counterpoise.handed_over": str(grant.handed_over),
                },
                links=spans.links([span]),
            )
            handoff.end(now)

    def _follow(self, queue_id: str, entries: Sequence[Entry], span: SpanContext | None) -> None:
        """Which rebalance a queue is in, after this was committed in `span`."""
        for record in (record for entry in entries for record in entry.records):
            if isinstance(record, r.HolddownSettled | r.RebalanceFinished):
                self._rebalances.pop(queue_id, None)
            elif isinstance(record, r.HolddownStarted | r.RebalanceStarted) and span is not None:
                # A rebalance follows its holddown.
                self._rebalances.setdefault(queue_id, span)
                if len(self._rebalances) > MOST_QUEUES:
                    self._rebalances.popitem(last=False)


def _traceparent(span: SpanContext) -> str:
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def _span_of(trace: Any, commit_id: str) -> SpanContext | None:
    """The span in which this was committed, by whatever replica; None if it was not traced."""
    try:
        _version, trace_id, span_id, flags = commit_id.rpartition(_SEPARATOR)[2].split("-")
        numbers = int(trace_id, 16), int(span_id, 16), int(flags, 16)
    except ValueError:
        return None
    span = trace.SpanContext(numbers[0], numbers[1], True, trace.TraceFlags(numbers[2]))
    return cast("SpanContext", span) if span.is_valid else None
