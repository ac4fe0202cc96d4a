"""Traces of what is decided and committed, and of handoffs (docs/tracing.md).

**One trace for one rebalance.** It is that of the call which triggered it (a bind, a drain, ...).
The spans of a commit follow the call that it answers. What a timer commits (the rebalance after a
holddown, a forced handoff) and every handoff follow the call that triggered the rebalance. The span
of a handoff has a link to the commit that ended it, which is in the trace of the owner's release.

Any replica may commit the next step. So the id of a transaction, which is stored with its records,
ends with the place of its span in the trace (a W3C `traceparent`). Other replicas read it there.

Without a tracer provider nothing is done: a replica has no `Traces`. Whether there is one is known
when it starts. Nothing is loaded: a program that has configured OpenTelemetry has loaded it.
"""

from __future__ import annotations

import os
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    # Without a provider `get_tracer_provider` reads the environment, which takes longer than most
    # of what a request needs besides.
    if trace is None or (
        not _PROVIDER_IS_NAMED and getattr(trace, "_TRACER_PROVIDER", trace) is None
    ):
        return None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return trace


class TracedCall(NamedTuple):
    """The span of a call, and when it came (ns since 1970)."""

    span: SpanContext
    at: int


def traces(store: Store) -> Traces | None:
    """The traces of a replica on this store; None if the program has no tracer provider."""
    trace = api()
    return None if trace is None else Traces(trace, store)


class Traces:
    """The spans of one replica: of its commits, and of the handoffs that they end."""

    def __init__(self, trace: Any, store: Store) -> None:
        self._trace = trace
        self._tracer: Tracer = trace.get_tracer("counterpoise")
        self._store = store
        # Of queues that are being rebalanced: the span that their handoffs follow.
        self._rebalances: OrderedDict[str, SpanContext] = OrderedDict()

    def call(self) -> TracedCall | None:
        """The present call; None if it is not traced."""
        span = self._trace.get_current_span().get_span_context()
        return TracedCall(span, time.time_ns()) if span.is_valid else None

    async def commit(self, commit: Commit) -> Positions:
        """Commits as the store does, in spans."""
        with self._committing(commit) as span:
            try:
                positions = await self._store.commit(commit)
            except QueueGone:
                self._rebalances.pop(commit.queue.id, None)
                raise
        self._ended(commit, span)
        self._follow(commit.queue.id, commit.entries, span)
        return positions

    def others(self, queue_id: str, entries: Sequence[Entry]) -> None:
        """Other replicas have committed these entries."""
        for entry in entries:
            self._follow(queue_id, (entry,), self._span_of(entry.commit_id))

    @contextmanager
    def _committing(self, commit: Commit) -> Iterator[SpanContext]:
        """The spans `decide` (since the first call) and `commit`; gives that of the commit."""
        calls = [one for one in commit.calls if isinstance(one, TracedCall)]
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
            decide = self._tracer.start_span(
                "decide",
                self._under(parent),
                start_time=min(one.at for one in calls),
                attributes={**about, "counterpoise.calls": len(calls)},
            )
            decide.end()
        span = self._tracer.start_span(
            "commit",
            self._under(parent),
            kind=self._trace.SpanKind.CLIENT,
            attributes={**about, "db.system.name": "postgresql"},
            links=self._links(others),
        )
        place = span.get_span_context()
        if span.is_recording():
            commit.commit_id += _SEPARATOR + _traceparent(place)
        with self._trace.use_span(span, end_on_exit=True):
            yield place

    def _ended(self, commit: Commit, span: SpanContext) -> None:
        """The spans of the handoffs that ended with this commit."""
        now = time.time_ns()
        context = self._under(self._rebalances.get(commit.queue.id))
        grants = (
            grant
            for entry in commit.entries
            for record in entry.records
            if isinstance(record, r.Granted)
            for grant in record.grants
            if grant.by_handoff and grant.seconds is not None
        )
        for grant in grants:
            handoff = self._tracer.start_span(
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
                links=self._links([span]),
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

    def _span_of(self, commit_id: str) -> SpanContext | None:
        """The span in which this was committed, by whatever replica; None if it was not traced."""
        try:
            _version, trace_id, span_id, flags = commit_id.rpartition(_SEPARATOR)[2].split("-")
            numbers = int(trace_id, 16), int(span_id, 16), int(flags, 16)
        except ValueError:
            return None
        trace = self._trace
        span = trace.SpanContext(numbers[0], numbers[1], True, trace.TraceFlags(numbers[2]))
        return cast("SpanContext", span) if span.is_valid else None

    def _under(self, span: SpanContext | None) -> Context:
        from opentelemetry.context import Context

        if span is None:
            return Context()
        trace = self._trace
        context = trace.set_span_in_context(trace.NonRecordingSpan(span), Context())
        return cast("Context", context)

    def _links(self, spans: Sequence[SpanContext]) -> list[Link]:
        each = {(span.trace_id, span.span_id): span for span in spans}
        return [self._trace.Link(span) for span in each.values()][:MOST_LINKS]


def _traceparent(span: SpanContext) -> str:
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
