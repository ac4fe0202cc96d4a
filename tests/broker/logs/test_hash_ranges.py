"""Partitions of dynamic built-in logs: split, merged, and never a message in the wrong one.

The model of a log: the ranges of its unsealed partitions, and for each key its messages in the
order in which they were appended.
"""

import asyncio
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import create_async_engine

from broker.core.errors import PartitionEnded
from broker.logs.builtin import BuiltinLogs
from broker.logs.by_kind import halves
from broker.logs.hash_ranges import HashRanges
from broker.logs.ports import LogOwner
from broker.postgres.migrations import LOG
from counterpoise.keys import hash_of
from counterpoise.logs import (
    AppendBatch,
    AppendResult,
    LogError,
    LogNotFound,
    LogRefused,
    Message,
    StaleRouting,
)
from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.logs.ranges import HASHES, HashRange, Ranges, equal_ranges, parse_range
from tests.budgets import budget
from tests.log_support import log_url, texts, until, waiters, with_logs

__all__ = ["log_url"]

HALF = HASHES // 2
RANGES = LOG.location / "sql" / "ranges.sql"
OWNER = LogOwner("id", "flights", 1.0)


def keys_of(count):
    return {one.partition: one.key for one in equal_ranges(count)}


def make(url, count=1, name="flights"):
    with_logs(url, lambda logs: logs.ensure(f"builtin:{name}", count, keys=keys_of(count)))
    return PostgresLog(name, url, timeout_seconds=10)


@pytest.fixture
def log(log_url):
    log = make(log_url)
    yield log
    log.close()


@pytest.fixture
async def logs(log, log_url):
    engine = create_async_engine(log_url.replace("postgresql://", "postgresql+asyncpg://"))
    yield BuiltinLogs(engine, log_url)
    await engine.dispose()


def split(url, partition, at=None, name="flights", owner=None):
    return with_logs(url, lambda logs: logs.ranges.split(f"builtin:{name}", partition, at, owner))


def merge(url, partition, other, name="flights"):
    return with_logs(url, lambda logs: logs.ranges.merge(f"builtin:{name}", partition, other))


def put(log, ranges, *keys, first=0, publisher="p"):
    """Append a message for each key as these ranges route it; its value is its key and sequence."""
    partitions = [
        ranges.nth(n) if key is None else ranges.partition_of(key) for n, key in enumerate(keys)
    ]
    messages = [Message(f"{key}:{first + n}".encode(), key) for n, key in enumerate(keys)]
    return log.append(AppendBatch(publisher, first, 0, partitions, messages, by_range=True))


def current(log):
    """The present ranges, as a refused publisher learns them."""
    with pytest.raises(StaleRouting) as refused:
        log.append(AppendBatch("asks", 0, 0, [2**31 - 1], [Message(b"")], by_range=True))
    return refused.value.ranges


def key_in(whole):
    """Some key with its hash in this range."""
    return next(key for key in map(str, range(100_000)) if hash_of(key) in whole)


# ------------------------------------------------------------------ splits and merges


def test_a_split_seals_the_parent_at_its_end_and_names_its_children(log, log_url):
    put(log, current(log), "a", "b", "c")
    sealing = split(log_url, 0)
    root = f"00000000-{HASHES - 1:08x}.0"
    assert sealing.ends == {0: "3"}
    assert [(one.key, one.parents) for one in sealing.successors] == [
        (f"00000000-{HALF - 1:08x}.1", (root,)),
        (f"{HALF:08x}-ffffffff.2", (root,)),
    ]
    bounds = log.bounds([0, 1, 2])
    assert bounds.keys == {0: root} | {one.partition: one.key for one in sealing.successors}
    assert bounds.sealed == {0: tuple(sealing.successors)}
    assert [bounds.is_final(n) for n in range(3)] == [True, False, False]
    assert (bounds.partition_count, bounds.ends[0]) == (3, "3")


def test_the_service_sees_the_same_bounds_as_a_consumer(log, log_url):
    split(log_url, 0)
    merge(log_url, 1, 2)
    seen = with_logs(log_url, lambda logs: logs.bounds("builtin:flights"))
    assert seen == log.bounds(range(4))


def test_a_range_that_comes_back_after_a_merge_has_a_new_key(log, log_url):
    split(log_url, 0)
    (child,) = merge(log_url, 2, 1).successors
    assert child.key == f"00000000-{HASHES - 1:08x}.3"
    assert set(child.parents) == {f"00000000-{HALF - 1:08x}.1", f"{HALF:08x}-ffffffff.2"}


def test_repeated_calls_are_answered_the_same(log, log_url):
    first = split(log_url, 0, 1000)
    assert split(log_url, 0, 1000) == split(log_url, 0) == first
    merged = merge(log_url, 1, 2)
    assert merge(log_url, 1, 2) == merge(log_url, 2, 1) == merged
    assert len(current(log)) == 1


@pytest.mark.long
def test_what_cannot_be_split_or_merged_is_refused_and_changes_nothing(log, log_url):
    split(log_url, 0, 1)
    split(log_url, 2)
    before = log.bounds(range(9))
    for why, act in [
        ("after it came 1 and 2", lambda: split(log_url, 0, 2)),
        ("after it came 1 and 2", lambda: merge(log_url, 0, 1)),
        ("each part needs a hash", lambda: split(log_url, 1)),
        ("each part needs a hash", lambda: split(log_url, 3, 1)),
        ("each part needs a hash", lambda: split(log_url, 3, HASHES)),
        ("each part needs a hash", lambda: split(log_url, 3, -1)),
        ("side by side", lambda: merge(log_url, 1, 4)),
        ("side by side", lambda: merge(log_url, 3, 3)),
        ("no partition 5 with", lambda: split(log_url, 5)),
        ("no partition 5 with", lambda: merge(log_url, 3, 5)),
    ]:
        with pytest.raises((PartitionEnded, LogError), match=why):
            act()
    assert log.bounds(range(9)) == before


def test_a_fixed_log_has_nothing_to_split(log_url):
    with_logs(log_url, lambda logs: logs.ensure("builtin:flights", 4))
    with pytest.raises(LogRefused):
        split(log_url, 0)


def test_another_queue_s_log_is_left_alone(log, log_url):
    with_logs(log_url, lambda logs: logs.drop("builtin:flights"))
    with_logs(log_url, lambda logs: logs.ensure("builtin:flights", 1, OWNER, keys=keys_of(1)))
    with pytest.raises(LogNotFound):
        split(log_url, 0, owner=LogOwner("x", "flights", 0))


@pytest.mark.parametrize("keys", [{}, {0: "root"}, {0: "00000000-0000000f.0"}])
def test_a_log_begins_only_with_ranges_that_cover_every_hash(log_url, keys):
    with pytest.raises(LogError):
        with_logs(log_url, lambda logs: logs.ensure("builtin:x", 1, keys=keys))
    with closing(PostgresLog("x", log_url)) as log, pytest.raises(LogNotFound):
        log.bounds([0])


async def test_many_splits_at_once_are_one(logs, log):
    found = await asyncio.gather(*(logs.ranges.split("builtin:flights", 0, None) for _ in range(8)))
    assert all(one == found[0] for one in found)
    assert len(log.bounds(range(20)).keys) == 3


# ------------------------------------------------------------------ appends


def test_a_message_for_a_sealed_partition_or_a_foreign_range_is_refused_as_a_whole(log, log_url):
    old = current(log)
    split(log_url, 0)
    new = current(log)
    low, high = (key_in(one) for one in new.all)
    wrong = Ranges([HashRange(0, HALF - 1, 2), HashRange(HALF, HASHES - 1, 1)])
    for ranges in (old, wrong):
        for keys in ((low,), (high,), (low, high)):
            with pytest.raises(StaleRouting) as refused:
                put(log, ranges, *keys)
            assert refused.value.ranges is not None
            assert refused.value.ranges.all == new.all
    with pytest.raises(StaleRouting):
        put(log, old, None)
    # One wrong message among right ones.
    with pytest.raises(StaleRouting):
        log.append(
            AppendBatch("p", 0, 0, [1, 1], [Message(b"", low), Message(b"", high)], by_range=True)
        )
    assert set(log.bounds(range(3)).ends.values()) == {"0"}
    assert put(log, new, low, high, None) == AppendResult(3, 0)


def test_sequences_count_across_a_split(log, log_url):
    old = current(log)
    put(log, old, "a", "b", "c")
    split(log_url, 0)
    # Repeated with an unknown outcome: refused by the old ranges, dropped by the new ones.
    with pytest.raises(StaleRouting):
        put(log, old, "a", "b", "c")
    assert put(log, current(log), "a", "b", "c") == AppendResult(0, 3)
    assert put(log, current(log), "c", "d", first=2) == AppendResult(1, 1)
    assert log.next_sequence("p") == 4


def test_a_client_that_routes_by_a_count_gets_an_error_of_its_own(log):
    with pytest.raises(StaleRouting):
        log.append(AppendBatch("p", 0, 1, [0], [Message(b"", "k")]))
    assert log.bounds([0]).ends == {0: "0"}


def test_a_log_without_ranges_takes_no_append_by_range(log_url):
    with_logs(log_url, lambda logs: logs.ensure("builtin:flights", 4))
    with closing(PostgresLog("flights", log_url)) as log:
        for partition in (0, 7):
            with pytest.raises(StaleRouting) as refused:
                log.append(AppendBatch("p", 0, 0, [partition], [Message(b"")], by_range=True))
            assert refused.value.partition_count == 4


APPEND_OPEN = """SELECT counterpoise_log.append_by_range(
    'flights', %s, 0, %s::integer[], %s::bytea[], NULL, NULL, NULL)"""


def test_a_split_waits_for_appends_under_way_and_others_do_not_wait(log, log_url):
    """The end of the parent is final: an append that was first is below it."""
    split(log_url, 0)
    with psycopg.connect(log_url) as holding, ThreadPoolExecutor() as pool:
        holding.execute(APPEND_OPEN, ["slow", [1], [b"slow"]])
        splitting = pool.submit(split, log_url, 1)
        until(lambda: waiters(log_url) == 1)
        other = log.append(AppendBatch("q", 0, 0, [2], [Message(b"other")], by_range=True))
        assert other == AppendResult(1, 0)
        assert not splitting.done()
        holding.commit()
        assert splitting.result().ends == {1: "1"}
    assert texts(log, 1) == ["slow"]


async def test_an_append_waits_only_for_the_sealing_itself(logs, log, monkeypatch):
    """Not for the other statements of a split, however slow the service is."""
    begin = HashRanges._begin

    async def appended_meanwhile(*arguments):
        await begin(*arguments)
        async with asyncio.timeout(240):
            done = await asyncio.to_thread(put, log, Ranges(equal_ranges(1)), "a")
        assert done == AppendResult(1, 0)

    monkeypatch.setattr(HashRanges, "_begin", appended_meanwhile)
    assert (await logs.ranges.split("builtin:flights", 0, None)).ends == {0: "1"}
    assert texts(log, 0) == ["a:0"]


def test_an_append_that_waited_for_a_split_is_refused(log, log_url):
    with psycopg.connect(log_url) as holding, ThreadPoolExecutor() as pool:
        holding.execute(
            "SELECT FROM counterpoise_log.partitions WHERE partition = 0 FOR NO KEY UPDATE"
        )
        sealing = '[{"partition": 1, "key": "00000000-ffffffff.1", "parents": []}]'
        appending = pool.submit(put, log, Ranges(equal_ranges(1)), "a")
        until(lambda: waiters(log_url) == 1)
        holding.execute("UPDATE counterpoise_log.partitions SET successors = %s", [sealing])
        holding.execute(
            "INSERT INTO counterpoise_log.partitions (log_id, partition, first_hash, last_hash)"
            f" SELECT log_id, 1, 0, {HASHES - 1} FROM counterpoise_log.logs"
        )
        holding.commit()
        with pytest.raises(StaleRouting):
            appending.result()
    assert log.bounds([0]).ends == {0: "0"}


@settings(
    max_examples=budget(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), max_size=50
    )
)
def test_the_database_hashes_keys_as_publishers_do(log, log_url, keys):
    # The other of the two in the file is the one of older servers.
    _, plain = re.findall(r"\$body\$(.+?)\$body\$", RANGES.read_text("utf-8"), re.DOTALL)
    with psycopg.connect(log_url) as connection:
        connection.execute("ALTER FUNCTION counterpoise_log.key_hash RENAME TO present_hash")
        connection.execute(plain)
        for name in ("present_hash", "key_hash"):
            rows = connection.execute(
                f"SELECT counterpoise_log.{name}(key) FROM unnest(%s::text[]) AS key", [keys]
            ).fetchall()
            assert [row[0] for row in rows] == [hash_of(key) for key in keys]
        connection.rollback()


def test_hashing_a_key_is_a_part_of_the_statement(log, log_url):
    """The embedded server has a function for it; a call for each message would cost a fifth."""
    with psycopg.connect(log_url) as connection:
        plan = connection.execute(
            "EXPLAIN VERBOSE SELECT counterpoise_log.key_hash(key) FROM unnest(%s::text[]) AS key",
            [["a"]],
        ).fetchall()
    assert any("crc32" in line for (line,) in plan)
    assert not any("key_hash" in line for (line,) in plan)


# ------------------------------------------------------------------ random splits and merges

steps = st.one_of(
    st.tuples(st.just("split"), st.integers(0, 99), st.integers(0, HASHES - 1) | st.none()),
    st.tuples(st.just("merge"), st.integers(0, 99), st.just(None)),
    st.tuples(st.just("put"), st.integers(0, 99), st.just(None)),
    st.tuples(st.just("stale put"), st.integers(0, 99), st.just(None)),
)


@settings(
    max_examples=budget(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(1, 5), st.lists(steps, min_size=1, max_size=25))
def test_every_hash_has_one_partition_and_every_key_its_order(log_url, count, played):
    name = uuid.uuid4().hex
    log, known = make(log_url, count, name), Ranges(equal_ranges(count))
    model, sequence, first_seen = list(equal_ranges(count)), 0, list(equal_ranges(count))
    number = count
    appended: dict[str, list[str]] = {}
    for what, place, at in played:
        model.sort()
        chosen = model[place % len(model)]
        if what == "split":
            middle = (chosen.first + chosen.last + 1) // 2 if at is None else at
            if not chosen.first < middle <= chosen.last:
                continue
            split(log_url, chosen.partition, middle, name)
            begun = [
                HashRange(chosen.first, middle - 1, number),
                HashRange(middle, chosen.last, number + 1),
            ]
            model = [one for one in model if one is not chosen] + begun
            number += 2
        elif what == "merge":
            other = model[(place + 1) % len(model)]
            if chosen.last + 1 != other.first:
                continue
            merge(log_url, other.partition, chosen.partition, name)
            begun = [HashRange(chosen.first, other.last, number)]
            model = [one for one in model if one not in (chosen, other)] + begun
            number += 1
        else:
            keys = [f"k{(place + n) % 7}" for n in range(3)]
            is_stale = any(
                known.of_hash(hash_of(key)).partition
                != next(one for one in model if hash_of(key) in one).partition
                for key in keys
            )
            if is_stale:
                with pytest.raises(StaleRouting) as refused:
                    put(log, known, *keys, first=sequence)
                assert refused.value.ranges is not None
                known = refused.value.ranges
                assert sorted(known.all) == sorted(model)
            put(log, known, *keys, first=sequence)
            for key in keys:
                appended.setdefault(key, []).append(f"{key}:{sequence}")
                sequence += 1
    assert sorted(current(log).all) == sorted(model)
    # Read as consumers do: a partition after all its parents.
    bounds = log.bounds(range(number))
    assert set(bounds.keys) == set(range(number))
    waiting, read, done = [one.partition for one in first_seen], [], set()
    while waiting:
        partition = waiting.pop()
        read += [text for text in texts(log, partition) if not text.startswith("None")]
        done.add(bounds.keys[partition])
        for after in bounds.sealed.get(partition, ()):
            assert parse_range(after.key) is not None
            if done.issuperset(after.parents):
                waiting.append(after.partition)
    assert len(done) == number
    for key, values in appended.items():
        assert [text for text in read if text.startswith(f"{key}:")] == values
    log.close()


# ------------------------------------------------------------------ roots


@pytest.mark.long
def test_a_new_queue_begins_where_messages_begin_or_where_they_end(log, log_url):
    def roots(latest):
        found = with_logs(log_url, lambda logs: logs.ranges.roots("builtin:flights", latest=latest))
        return {root.partition: root.position for root in found}

    def trim(below):
        with_logs(log_url, lambda logs: logs.trim("builtin:flights", below))

    put(log, current(log), "a")
    split(log_url, 0)
    low, high = (key_in(one) for one in current(log).all)
    put(log, current(log), low, high, high, first=1)
    split(log_url, 2)
    assert (roots(False), roots(True)) == ({0: None}, {1: "1", 3: "0", 4: "0"})
    trim({0: "1"})
    assert roots(False) == {1: None, 2: None}
    trim({2: "2"})
    assert roots(False) == {1: None, 3: None, 4: None}
    # Partition 1 still has messages, so what came of its merge with 3 waits for both.
    merge(log_url, 1, 3)
    assert (roots(False), roots(True)) == ({1: None, 3: None, 4: None}, {4: "0", 5: "0"})
    trim({1: "1"})
    assert roots(False) == {4: None, 5: None}


# ------------------------------------------------------------------ halves of a load


def test_a_load_is_halved_at_a_hash():
    whole = HashRange(0, 99, 0)
    assert halves(whole, {10: 5, 20: 5}) == 15
    assert halves(whole, {10: 1, 11: 1}) == 11
    assert halves(whole, {10: 1, 20: 1, 30: 8, 40: 8}) == 35
    assert halves(whole, {10: 100, 20: 1, 30: 1}) == 15
    assert halves(whole, {}) is None
    assert halves(whole, {10: 100}) is None
    assert halves(whole, {10: 1, 200: 1}) is None


@given(st.dictionaries(st.integers(0, 1000), st.integers(1, 50), min_size=2, max_size=12))
def test_no_other_hash_halves_a_load_better(sampled):
    def uneven(at):
        left = sum(count for key_hash, count in sampled.items() if key_hash < at)
        return abs(sum(sampled.values()) - 2 * left)

    found = halves(HashRange(0, 1000, 0), sampled)
    assert found is not None
    assert 0 < found <= 1000
    assert uneven(found) == min(uneven(at) for at in range(1, 1001))


def test_the_last_messages_say_how_the_load_lies(log, log_url):
    put(log, current(log), *["a"] * 3, "b", None, "b" * 2000)
    whole, sampled = with_logs(log_url, lambda logs: logs.ranges.sample("builtin:flights", 0))
    assert (whole.first, whole.last) == (0, HASHES - 1)
    assert sampled == {hash_of("a"): 3, hash_of("b"): 1}
    with pytest.raises(LogRefused):
        with_logs(log_url, lambda logs: logs.ranges.sample("builtin:flights", 1))
