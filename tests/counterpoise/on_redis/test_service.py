"""The service administers a queue's log in Redis; publishers and consumers use it unchanged."""

import asyncio
import json
import threading
from contextlib import closing
from functools import partial

import pytest
from click.testing import CliRunner
from msgspec import structs

from broker.logs.external import ExternalLogs, open_managed
from broker.service import Broker
from counterpoise.cli.app import app
from counterpoise.consumer import Consumer
from counterpoise.errors import Invalid, QueueInUse
from counterpoise.logs import LogNotFound, PositionTrimmed, open_log
from counterpoise.publisher import Publisher
from counterpoise.wire import CommitItem
from tests.counterpoise.on_redis.conftest import SECRET
from tests.log_support import texts
from tests.service import eventually


def publish(world, queue, values):
    with Publisher(queue, url=world.service.url) as publisher:
        for value in values:
            publisher.publish(value.encode(), key=value)


def consume(world, queue, count, **options):
    seen = []
    consumer = Consumer(
        queue,
        lambda owned, batch: seen.extend(batch["value"].to_pylist()),
        url=world.service.url,
        limit=count,
        **options,
    )
    consumer.run()
    return sorted(value.decode() for value in seen)


def keep(world, **settings):
    """Run the regular upkeep now, by another replica of the service."""

    async def upkeep():
        broker = Broker(structs.replace(world.service.settings, **settings))
        await broker.start()
        try:
            await broker.log_upkeep.maintain()
        finally:
            await broker.stop()

    asyncio.run(upkeep())


def test_messages_come_through_once_also_while_the_queue_grows_and_shrinks(world):
    world.client.create_queue("flights", 2, log=world.log, rebalance_delay=0, max_handoff_time=600)
    values = [f"v{number:04}" for number in range(600)]
    seen: list[tuple[str, bytes]] = []
    stop = threading.Event()
    lock = threading.Lock()

    def handle(owned, batch):
        with lock:
            seen.extend(zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True))

    def run():
        Consumer("flights", handle, url=world.service.url, idle_seconds=0.05).run(stop.is_set)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        with Publisher("flights", url=world.service.url, linger_seconds=0.01) as publisher:
            for number, value in enumerate(values):
                publisher.publish(value.encode(), key=value)
                if number in (200, 400):
                    # Buffered messages were routed for the old count and are routed again.
                    count = 5 if number == 200 else 3
                    world.client.change_queue("flights", partition_count=count)
        eventually(lambda: len(seen) >= len(values))
        eventually(lambda: world.client.queue("flights").operational_partition_count == 3)
    finally:
        stop.set()
        for thread in threads:
            thread.join(240)
    assert sorted(value.decode() for _, value in seen) == values


@pytest.mark.long
@pytest.mark.parametrize("kind", ["builtin", "redis"])
def test_the_last_messages_stay_where_they_are_to_be_kept(world, kind):
    where = {"log": world.log} if kind == "redis" else {"retention_seconds": 0}
    world.client.create_queue("flights", 1, rebalance_delay=0, **where)
    publish(world, "flights", [f"v{n}" for n in range(20)])
    assert len(consume(world, "flights", 20)) == 20
    eventually(lambda: world.client.partitions("flights")[0].position == "20")
    if kind == "redis":
        log = open_log(world.log, world.access)
    else:
        access = world.client.log_access("flights", "read").access
        log = open_log("builtin:flights", access.url)
    keep(world, log_keep_messages=50)
    assert log.bounds([0]).starts == {0: "0"}
    keep(world, log_keep_messages=5)
    assert log.bounds([0]).starts == {0: "15"}
    assert texts(log, 0, "15") == [f"v{n}" for n in range(15, 20)]
    keep(world)
    assert log.bounds([0]).starts == {0: "20"}
    log.close()


@pytest.mark.long
def test_the_builtin_log_keeps_what_its_queue_says(world):
    made = world.client.create_queue("flights", 1, rebalance_delay=0)
    assert (made.retention_seconds, made.retention_bytes) == (86_400, 1 << 30)
    publish(world, "flights", [f"v{n:02}" for n in range(20)])
    assert len(consume(world, "flights", 20)) == 20
    eventually(lambda: world.client.partitions("flights")[0].position == "20")
    keep(world)
    access = world.client.log_access("flights", "read").access
    with closing(open_log("builtin:flights", access.url)) as log:
        assert log.bounds([0]).starts == {0: "0"}
        # Value and key have six bytes.
        changed = world.client.change_queue("flights", retention_bytes=60)
        assert (changed.retention_seconds, changed.retention_bytes) == (86_400, 60)
        keep(world)
        assert log.bounds([0]).starts == {0: "10"}
        world.http("POST", "/queues/flights/positions", {"to": "earliest"})
        assert len(consume(world, "flights", 10)) == 10
        eventually(lambda: world.client.partitions("flights")[0].position == "20")
        world.client.change_queue("flights", retention_seconds=0)
        keep(world)
        assert log.bounds([0]).starts == {0: "20"}


def test_only_a_queue_with_a_builtin_log_of_its_own_has_a_retention(world):
    world.client.create_queue("flights", 1)
    for name, log in (("copy", "builtin:flights"), ("elsewhere", world.log)):
        with pytest.raises(Invalid, match="what that log keeps"):
            world.client.create_queue(name, 1, log=log, retention_bytes=5)
        made = world.client.create_queue(name, 1, log=log)
        assert (made.retention_seconds, made.retention_bytes) == (None, None)
        with pytest.raises(Invalid, match="what that log keeps"):
            world.client.change_queue(name, retention_seconds=5)


def shows_lag(world, lag):
    return world.lag("flights") == lag


@pytest.mark.long
def test_positions_trimming_and_lag(world):
    world.client.create_queue("flights", 2, log=world.log, rebalance_delay=0)
    publish(world, "flights", [f"v{n}" for n in range(20)])
    eventually(lambda: world.lag("flights") == 20)
    assert len(consume(world, "flights", 20)) == 20
    eventually(lambda: world.lag("flights") == 0)
    keep(world)
    log = open_log(world.log, world.access)
    bounds = log.bounds([0, 1])
    assert bounds.starts == bounds.ends
    publish(world, "flights", ["again"])
    for to, left in (("latest", 0), ("earliest", 1), ("2026-01-01T00:00:00Z", 1)):
        answer = world.http("POST", "/queues/flights/positions", {"to": to})
        assert answer.status_code == 200, answer.text
        eventually(partial(shows_lag, world, left))
    log.close()


@pytest.mark.long
def test_a_second_queue_on_the_log_follows_the_first(world):
    world.client.create_queue("flights", 2, log=world.log, rebalance_delay=0)
    spelled = world.log.replace("/0/", "/00/")
    copy = world.client.create_queue("copy", log=spelled, rebalance_delay=0)
    assert copy.partition_count == 2
    with pytest.raises(Invalid, match="'flights'"):
        world.client.create_queue("third", 5, log=world.log)
    with pytest.raises(Invalid, match="resize that queue"):
        world.client.change_queue("copy", partition_count=3)
    with pytest.raises(QueueInUse):
        world.client.delete_queue("flights")
    world.client.change_queue("flights", partition_count=3)
    assert world.client.queue("copy").partition_count == 3
    publish(world, "copy", ["a", "b", "c"])
    assert consume(world, "copy", 3) == ["a", "b", "c"]
    # Messages that `flights` has not processed are kept.
    keep(world)
    assert consume(world, "flights", 3) == ["a", "b", "c"]
    world.client.delete_queue("copy")
    log = open_log(world.log, world.access)
    assert sum(len(texts(log, p)) for p in range(3)) == 3
    world.client.delete_queue("flights")
    with pytest.raises(LogNotFound):
        log.bounds([0])
    log.close()


@pytest.mark.long
def test_a_log_that_redis_has_lost_is_made_anew_and_messages_are_not_mistaken(world):
    world.client.create_queue("flights", 1, log=world.log, rebalance_delay=0)
    publish(world, "flights", ["a", "b", "c"])
    assert consume(world, "flights", 2, max_messages=2) == ["a", "b"]
    with world.redis.client() as admin:
        admin.flushall()
    assert world.ends("flights") == [(None, None)]
    keep(world)
    publish(world, "flights", ["d"])
    # Position 2 was committed, where `c` was. Now `d` is there, and nothing was skipped or
    # repeated.
    assert consume(world, "flights", 1) == ["d"]


@pytest.mark.long
def test_unprocessed_messages_stay_when_redis_loses_those_of_another_queue(world):
    world.client.create_queue("flights", 1, log=world.log, rebalance_delay=0)
    world.client.create_queue("copy", log=world.log, rebalance_delay=0)
    publish(world, "flights", [f"v{n}" for n in range(10)])
    assert len(consume(world, "flights", 10)) == 10
    eventually(lambda: world.client.partitions("flights")[0].position == "10")
    with world.redis.client() as admin:
        admin.xtrim("counterpoise:{flights}:stream:0", minid="0")
        for entry, _ in admin.xrange("counterpoise:{flights}:stream:0")[5:]:
            admin.xdel("counterpoise:{flights}:stream:0", entry)
        _, *state = admin.hget("counterpoise:{flights}:partitions", "0").split()
        admin.hset("counterpoise:{flights}:partitions", "0", b" ".join([b"5", *state]))
    with pytest.raises(Invalid, match="partition 0 ends at 5"):
        world.client.set_positions("copy", {0: "6"})
    keep(world)
    publish(world, "flights", ["new"])
    log = open_log(world.log, world.access)
    assert log.bounds([0]).starts == {0: "0"}
    assert consume(world, "flights", 1) == ["new"]
    assert consume(world, "copy", 5) == [f"v{n}" for n in range(5)]
    # A queue that has not processed lost messages gets an error and skips nothing.
    with pytest.raises(PositionTrimmed):
        consume(world, "copy", 1)
    world.client.set_positions("copy", {0: "10"})
    keep(world)
    assert log.bounds([0]).starts == {0: "10"}
    log.close()


def test_an_impossible_position_is_refused_and_does_not_stop_the_upkeep(world):
    world.client.create_queue("flights", 2, log=world.log, rebalance_delay=0)
    publish(world, "flights", [f"v{n}" for n in range(20)])
    log = open_managed(world.log, world.access, timeout_seconds=60)
    ends = log.bounds([0, 1]).ends
    bound = world.client.bind("flights", "one", lease_seconds=60)
    eventually(lambda: {one.owner for one in world.client.partitions("flights")} == {bound.flow_id})
    impossible, possible = CommitItem(0, 1, "9" * 18), CommitItem(1, 1, ends[1])
    with pytest.raises(Invalid, match="not a position"):
        world.client.commit("flights", bound.flow_id, bound.flow_token, [impossible, possible])
    world.client.commit("flights", bound.flow_id, bound.flow_token, [possible])
    keep(world)
    bounds = log.bounds([0, 1])
    assert bounds.ends == ends
    assert bounds.starts == {0: "0", 1: ends[1]}
    log.close()


@pytest.mark.long
def test_an_upkeep_does_not_bring_the_log_of_a_deleted_queue_back(world, monkeypatch):
    world.client.create_queue("flights", 1, log=world.log)
    upkeep = ExternalLogs.ensure

    async def slowly(self, *told):
        await asyncio.to_thread(world.client.delete_queue, "flights")
        await upkeep(self, *told)

    with monkeypatch.context() as patch:
        patch.setattr(ExternalLogs, "ensure", slowly)
        keep(world)
    with world.redis.client() as admin:
        assert admin.keys("*") == []
    world.client.create_queue("flights", 1, log=world.log)


def test_a_log_of_another_owner_is_not_taken(world):
    world.client.create_queue("flights", 2, log=world.log)
    with world.redis.client() as admin:
        admin.hset(
            "counterpoise:{other}:meta",
            mapping={
                "incarnation": "x",
                "owner_id": "y",
                "owner": "theirs",
                "partition_count": "7",
                "revision": "1",
            },
        )
    with pytest.raises(Invalid, match="belongs to a queue 'theirs'"):
        world.client.create_queue("mine", 2, log=world.redis.log("other"))
    assert [queue.name for queue in world.client.queues()] == ["flights"]


def test_a_log_out_of_reach_refuses_a_queue_and_shows_no_lag(world, tmp_path):
    for log in ("redis://127.0.0.1:1/0/q", f"redis://localhost:{world.redis.port}/0/q"):
        # No server listens there; and there are no credentials for the other spelling of the host.
        with pytest.raises(Invalid, match="cannot have this log"):
            world.client.create_queue("q", 1, log=log)
    assert world.client.queues() == []


@pytest.mark.long
def test_credentials_in_the_log_are_refused_with_a_hint_and_never_shown(world, capfd):
    for log in (
        f"redis://:{SECRET}@{world.redis.address}/0/q",
        f"redis://{world.redis.address}/0/q?password={SECRET}",
        f"dynamo://table?token={SECRET}",
    ):
        answer = world.http("POST", "/queues", {"name": "q", "partition_count": 1, "log": log})
        assert answer.status_code == 422
        assert "COUNTERPOISE_LOG_URL" in answer.text
        assert SECRET not in answer.text
    world.client.create_queue("flights", 1, log=world.log, rebalance_delay=0)
    publish(world, "flights", ["a"])
    consume(world, "flights", 1)
    keep(world)
    for path in ("", "/flights", "/flights/partitions", "/flights/rebalances"):
        assert SECRET not in world.http("GET", f"/queues{path}").text
    out, err = capfd.readouterr()
    assert SECRET not in out + err


def run(*arguments, code=0, **environment):
    result = CliRunner().invoke(app, arguments, env=environment)
    assert result.exit_code == code, result.output
    assert SECRET not in result.output
    return result


@pytest.mark.long
def test_the_lag_command_shows_what_is_left(world):
    world.client.create_queue("flights", 2, log=world.log, rebalance_delay=0)
    publish(world, "flights", [f"v{n}" for n in range(10)])
    shown = run("lag", "flights", "--url", world.service.url).output
    assert "10 messages behind" in shown
    assert shown.count(" start ") == 2
    document = json.loads(run("lag", "flights", "--url", world.service.url, "--json").output)
    assert document["lag"] == 10
    assert [one["position"] for one in document["partitions"]] == [None, None]
    assert document["log"] == world.log
    world.client.create_queue("late", log=world.log, start="latest")
    late = json.loads(run("lag", "late", "--url", world.service.url, "--json").output)
    assert late["lag"] == 0
    failed = run("lag", "flights", "--url", world.service.url, code=1, COUNTERPOISE_LOG_URL="")
    assert "set COUNTERPOISE_LOG_URL" in failed.output
