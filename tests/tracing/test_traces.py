"""What a trace shows (docs/tracing.md): client, service and database in one, for each handoff."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from broker.core import commands as c
from broker.testing.loop import settle, virtual
from counterpoise import Consumer
from counterpoise.errors import QueueNotFound
from counterpoise.testing import MemoryService
from counterpoise.wire import ReleaseItem
from tests.broker.shell import Service, World, spec

EXPORTER = InMemorySpanExporter()
# A process has one provider for good.
PROVIDER = TracerProvider()
PROVIDER.add_span_processor(SimpleSpanProcessor(EXPORTER))


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", PROVIDER)
    EXPORTER.clear()
    yield EXPORTER
    EXPORTER.clear()


def named(name, **attributes):
    """The spans of this name and with these attributes, in the order in which they ended."""
    wanted = {f"counterpoise.{key}": value for key, value in attributes.items()}
    return [
        span
        for span in EXPORTER.get_finished_spans()
        if span.name == name and wanted.items() <= dict(span.attributes).items()
    ]


def parent_of(span):
    found = [
        one
        for one in EXPORTER.get_finished_spans()
        if span.parent is not None and one.context.span_id == span.parent.span_id
    ]
    assert len(found) == 1, span.to_json()
    return found[0]


BIND = "POST /v1/queues/{queue}/flows"
RELEASE = "POST /v1/queues/{queue}/flows/{flow}/release"


def hand_over(client, first, second):
    """The first flow releases what it is asked for, as a consumer does."""
    view = client.poll("orders", first.flow_id, first.flow_token, 0, 0)
    revoking = [one for one in view.partitions if one.state == "revoking"]
    items = [ReleaseItem(one.partition, one.epoch) for one in revoking]
    client.release("orders", first.flow_id, first.flow_token, items)


def test_a_handoff_is_in_the_trace_of_the_bind_that_caused_it_linked_to_the_release(spans):
    with MemoryService() as service:
        service.create_queue("orders", 2)
        client = service.client
        first = client.bind("orders", "first")
        spans.clear()
        second = client.bind("orders", "second")
        hand_over(client, first, second)

    [bind] = [one for one in named(BIND) if one.kind is trace.SpanKind.CLIENT]
    assert bind.parent is None
    [handoff] = named("handoff", successor=second.flow_id)
    assert handoff.attributes["counterpoise.owner"] == first.flow_id
    assert handoff.attributes["counterpoise.handed_over"] == "graceful"
    assert handoff.attributes["counterpoise.epoch"] == 2
    assert handoff.context.trace_id == bind.context.trace_id
    began = parent_of(handoff)
    assert began.name == "commit"
    served = parent_of(began)
    assert served.kind is trace.SpanKind.SERVER
    assert served.attributes["http.route"] == "/v1/queues/{queue}/flows"
    assert parent_of(served) is bind

    [release] = [one for one in named(RELEASE) if one.kind is trace.SpanKind.CLIENT]
    [ended] = named("commit", revision=began.attributes["counterpoise.revision"] + 1)
    assert [link.context.span_id for link in handoff.links] == [ended.context.span_id]
    assert parent_of(parent_of(ended)) is release
    assert ended.attributes["db.system.name"] == "postgresql"
    [decide] = [one for one in named("decide") if one.parent == ended.parent]
    assert decide.start_time <= decide.end_time <= ended.start_time


def test_a_rebalance_after_a_holddown_is_in_the_trace_of_its_trigger(spans):
    with MemoryService() as service:
        service.create_queue("orders", 2, rebalance_delay=5.0)
        client = service.client
        first = client.bind("orders", "first", lease_seconds=3600)
        service.advance(6)
        spans.clear()
        second = client.bind("orders", "second", lease_seconds=3600)
        service.advance(6)
        service.advance(6)  # past the deadline: nobody releases

    [bind] = [one for one in named(BIND) if one.kind is trace.SpanKind.CLIENT]
    [handoff] = named("handoff", owner=first.flow_id, successor=second.flow_id)
    assert handoff.attributes["counterpoise.handed_over"] == "forced"
    assert handoff.context.trace_id == bind.context.trace_id
    assert {one.context.trace_id for one in named("commit")} == {bind.context.trace_id}


@virtual
async def test_a_handoff_begun_by_one_replica_and_ended_by_another_is_in_one_trace(spans):
    world = World()
    one, other = await traced_replica(world), await traced_replica(world)
    await one.create_queue(spec(partitions=2))
    first = await one.join("orders", "first")
    await other.view("orders", first)
    spans.clear()
    with PROVIDER.get_tracer("test").start_as_current_span("second"):
        second = await one.join("orders", "second")
    with PROVIDER.get_tracer("test").start_as_current_span("release"):
        await other.release("orders", first, 1, [c.ReleaseItem(1, 1)])

    [handoff] = named("handoff", successor=second)
    assert parent_of(parent_of(handoff)).name == "second"
    [link] = handoff.links
    [ended] = [one for one in named("commit") if one.context.span_id == link.context.span_id]
    assert parent_of(ended).name == "release"


async def traced_replica(world: World) -> Service:
    service = Service(world)
    await service.replica.start()
    await settle()
    return service


@virtual
async def test_a_commit_follows_the_first_of_its_calls_and_is_linked_to_the_others(spans):
    world = World()
    service = await traced_replica(world)
    await service.create_queue(spec(partitions=2, rebalance_delay=9.0))
    await service.join("orders", "first")
    spans.clear()

    async def join(who: str) -> None:
        with PROVIDER.get_tracer("test").start_as_current_span(who):
            await service.join("orders", who)

    await asyncio.gather(*map(join, ("second", "third")))

    [commit] = named("commit")
    assert parent_of(commit) is named("second")[0]
    assert named("third")[0].context.span_id in [one.context.span_id for one in commit.links]
    assert named("decide")[0].attributes["counterpoise.calls"] == 2


def test_a_refused_call_is_an_error(spans):
    with MemoryService() as service, pytest.raises(QueueNotFound):
        service.client.queue("nothing")
    served, call = named("GET /v1/queues/{queue}")
    assert parent_of(served) is call
    assert call.status.status_code is trace.StatusCode.ERROR
    assert call.attributes["http.response.status_code"] == 404
    assert call.attributes["error.type"] == "404"


@pytest.mark.long
def test_a_consumer_shows_what_it_reads_and_its_commits(spans):
    with MemoryService() as service:
        service.create_queue("orders", 1)
        service.publish("orders", *"abc")
        spans.clear()
        service.run(Consumer("orders", each=lambda message: None, url=service.url))
    [read] = named("receive orders")
    assert read.attributes["messaging.destination.partition.id"] == "0"
    assert read.attributes["messaging.batch.message_count"] == 3
    commits = named("POST /v1/queues/{queue}/flows/{flow}/commit", queue="orders")
    assert commits
    assert all(one.status.status_code is trace.StatusCode.UNSET for one in commits)


PLAIN = """
import sys
import counterpoise, counterpoise.client
client = counterpoise.Client("http://127.0.0.1:9")
try:
    client.queues()
except counterpoise.errors.Unreachable:
    pass
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""


STOPPING = """
import asyncio, types
from opentelemetry import trace
from api.app import create_app
from broker.replica.events import EventCounters
from broker.settings import load

async def nothing(): pass

broker = types.SimpleNamespace(
    tally=EventCounters(), start=nothing, stop=nothing, is_reachable=None
)
app = create_app(broker, load({}, shutdown_seconds=0.0))
messages = ["lifespan.startup", "lifespan.shutdown"]

async def receive():
    if len(messages) == 1:
        assert type(trace.get_tracer_provider()).__module__.startswith("opentelemetry.sdk")
        for _ in range(2000):
            trace.get_tracer("test").start_span("span").end()
    return {"type": messages.pop(0)}

async def send(message):
    print(message["type"], flush=True)

asyncio.run(app({"type": "lifespan", "app": app}, receive, send))
"""


def test_a_collector_that_does_not_answer_keeps_no_service_from_its_end():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        collector = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "3600",
        }
        done = subprocess.run(
            [sys.executable, "-c", STOPPING],
            env={**os.environ, **collector},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.stdout.split() == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert done.returncode == 0, done.stderr


def test_a_client_without_a_provider_loads_nothing():
    subprocess.run([sys.executable, "-c", PLAIN], check=True, timeout=60)


@pytest.mark.long
def test_nothing_is_traced_without_a_provider(monkeypatch):
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    EXPORTER.clear()
    with MemoryService() as service:
        service.create_queue("orders", 1)
        service.client.bind("orders", "first")
    assert not EXPORTER.get_finished_spans()
