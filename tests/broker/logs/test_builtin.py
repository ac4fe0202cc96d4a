"""The service's side of the built-in log: repeated, late and interrupted calls do no harm."""

import asyncio
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from broker.logs import builtin, times
from broker.logs.builtin import BuiltinLogs
from broker.logs.by_kind import LogsByKind
from broker.logs.external import ExternalLogs
from broker.logs.ports import LogOwner
from broker.logs.positions import trim_floor
from counterpoise.logs import AppendBatch, LogNotFound, Message, StaleRouting
from tests.counterpoise.logs.test_contract_watching import is_woken, waits
from tests.log_support import append, log, log_url, texts, until, waiters

__all__ = ["log", "log_url"]


@pytest.fixture
async def logs(log, log_url):
    """The service's log side; `log` is the consumer's view of its log `flights`."""
    engine = create_async_engine(log_url.replace("postgresql://", "postgresql+asyncpg://"))
    yield BuiltinLogs(engine, log_url)
    await engine.dispose()


def bounds_of(bounds, partition):
    return bounds.starts[partition], bounds.ends[partition]


def stored(url):
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM counterpoise_log.messages").fetchone()
    return row[0] if row else None


async def test_a_message_that_is_there_already_wakes_as_well(logs, log):
    """The answer to the first attempt was lost, and nobody was woken."""
    assert waits(log, {0: "0"})
    one = AppendBatch("p", 0, 4, [0], [Message(b"x")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            builtin, "_WAKE", text("SELECT CAST(:name AS text), CAST(:partitions AS integer[])")
        )
        assert (await logs.append("builtin:flights", one)).appended == 1
    assert (await logs.append("builtin:flights", one)).duplicates == 1
    assert is_woken(log, {0: "0"})


# ------------------------------------------------------------------ make and resize


async def test_ensure_does_not_change_an_existing_log(logs, log):
    append(log, "a")
    await logs.ensure("builtin:flights", 9)
    assert await logs.partition_count("builtin:flights") == 4
    assert texts(log, 0) == ["a"]


async def test_many_ensures_at_once_make_one_log(logs):
    await asyncio.gather(*(logs.ensure("builtin:new", 100) for _ in range(8)))
    assert len((await logs.bounds("builtin:new")).ends) == 100


async def test_a_partition_used_again_counts_on(logs, log):
    append(log, "a", partition=3)
    assert await logs.set_partition_count("builtin:flights", 2)
    assert await logs.set_partition_count("builtin:flights", 6)
    append(log, "b", partition=3, first=1, partition_count=6)
    append(log, "c", partition=5, first=2, partition_count=6)
    assert texts(log, 3) == ["a", "b"]
    assert bounds_of(await logs.bounds("builtin:flights"), 5) == ("0", "1")


async def test_a_resize_that_comes_late_changes_nothing(logs, log):
    """A replica committed revision 7, was paused, and meanwhile another one committed 8."""
    assert await logs.set_partition_count("builtin:flights", 2, revision=8)
    assert not await logs.set_partition_count("builtin:flights", 6, revision=7)
    assert await logs.partition_count("builtin:flights") == 2
    assert await logs.set_partition_count("builtin:flights", 2, revision=8)
    with pytest.raises(StaleRouting):
        append(log, "a", partition_count=6)


async def test_every_call_on_an_unknown_log_says_that_it_is_unknown(logs):
    for call in (
        logs.set_partition_count("builtin:nowhere", 2),
        logs.discard("builtin:nowhere", [1]),
        logs.trim("builtin:nowhere", {0: "1"}),
        logs.bounds("builtin:nowhere"),
        logs.partition_count("builtin:nowhere"),
        logs.position_at("builtin:nowhere", 0.0),
    ):
        with pytest.raises(LogNotFound):
            await call
    await logs.drop("builtin:nowhere")


# ------------------------------------------------------------------ discard and drop


async def test_discard_deletes_and_positions_count_on(logs, log, log_url):
    append(log, "a", "b", partition=3)
    append(log, "kept", partition=1, first=2)
    await logs.set_partition_count("builtin:flights", 3)
    assert await logs.discard("builtin:flights", [3]) == {3}
    assert stored(log_url) == 1
    assert bounds_of(await logs.bounds("builtin:flights"), 3) == ("2", "2")


async def test_a_discard_that_comes_late_spares_partitions_in_use_again(logs, log):
    await logs.set_partition_count("builtin:flights", 2)
    await logs.set_partition_count("builtin:flights", 3)
    append(log, "new", partition=2, partition_count=3)
    assert await logs.discard("builtin:flights", [1, 2, 3]) == {3}
    assert texts(log, 2) == ["new"]


async def test_a_dropped_log_is_gone_and_one_made_again_is_empty(logs, log, log_url):
    append(log, "a")
    await logs.drop("builtin:flights")
    await logs.drop("builtin:flights")
    assert stored(log_url) == 1, "the upkeep deletes it: nobody waits for that"
    assert await logs.sweep_dropped() == 1
    assert stored(log_url) == 0
    with pytest.raises(LogNotFound):
        append(log, "b", first=1)
    await logs.ensure("builtin:flights", 4)
    assert log.next_sequence("p") == 0
    append(log, "c")
    assert texts(log, 0) == ["c"]


FIRST, SECOND = LogOwner("first", "flights", 1000.0), LogOwner("second", "flights", 2000.0)


async def made_again(logs, log):
    """A queue was deleted and another created with the same name, into which messages were
    published.
    """
    assert await logs.ensure("builtin:flights", 4, FIRST)
    await logs.drop("builtin:flights", FIRST)
    assert await logs.ensure("builtin:flights", 4, SECOND)
    append(log, "a", "b", "c")


async def test_a_drop_that_comes_late_spares_the_log_of_a_later_queue(logs, log, log_url):
    """A replica deleted the queue, was paused, and meanwhile the queue was created again."""
    await made_again(logs, log)
    await LogsByKind(logs, ExternalLogs()).drop("builtin:flights", FIRST)
    assert texts(log, 0) == ["a", "b", "c"]
    append(log, "d", first=3)
    await LogsByKind(logs, ExternalLogs()).drop("builtin:flights", SECOND)
    with pytest.raises(LogNotFound):
        append(log, "e", first=4)


async def test_a_log_without_an_owner_is_dropped_and_trimmed_by_name(logs, log, log_url):
    append(log, "a", "b", "c")
    await logs.trim("builtin:flights", {0: "2"}, FIRST)
    assert texts(log, 0, "2") == ["c"]
    await logs.drop("builtin:flights", FIRST)
    with pytest.raises(LogNotFound):
        append(log, "d", first=3)


# ------------------------------------------------------------------ trim

positions = st.dictionaries(st.integers(0, 4), st.none() | st.integers(0, 50))


@given(st.lists(positions, max_size=4), st.integers(0, 60))
def test_trimming_keeps_some_messages_below_the_lowest_commit(committed, keep):
    most = trim_floor(committed)
    kept = trim_floor(committed, keep)
    assert kept == {n: at - keep for n, at in most.items() if at >= keep}


@given(st.lists(positions, max_size=4))
def test_the_floor_is_never_above_any_commit(committed):
    floor = trim_floor(committed)
    for reader in committed:
        for partition, position in floor.items():
            assert reader[partition] is not None
            assert position <= reader[partition]
    # And the floor is as high as that allows.
    for partition in range(5):
        known = [reader.get(partition) for reader in committed]
        if committed and None not in known:
            assert floor[partition] == min(known)


def test_nothing_is_trimmed_without_a_consuming_queue():
    assert trim_floor([]) == {}


async def test_trim_deletes_below_and_keeps_the_rest(logs, log, log_url):
    append(log, "a", "b", "c")
    append(log, "x", partition=1, first=3)
    await logs.trim("builtin:flights", {0: "2", 2: "0"})
    await logs.trim("builtin:flights", {0: "1"})
    assert stored(log_url) == 2
    assert bounds_of(await logs.bounds("builtin:flights"), 0) == ("2", "3")
    assert texts(log, 0, "2") == ["c"]


async def test_an_interrupted_trim_is_completed_by_the_next(logs, log, log_url):
    append(log, "a", "b", "c")
    with psycopg.connect(log_url) as connection:
        connection.execute("SELECT counterpoise_log.trim('flights', '{0}', '{2}')")
    assert stored(log_url) == 3
    await logs.trim("builtin:flights", {})
    assert stored(log_url) == 1


async def test_a_trim_that_comes_late_spares_the_log_of_a_later_queue(
    logs, log, log_url, monkeypatch
):
    """The upkeep of a queue was under way when the queue was deleted and created again."""
    ensure = logs.ensure

    async def overtaken(*given):
        fits = await ensure(*given)
        monkeypatch.undo()
        await made_again(logs, log)
        return fits

    monkeypatch.setattr(logs, "ensure", overtaken)
    by_kind = LogsByKind(logs, ExternalLogs())
    await by_kind.maintain("builtin:flights", 4, 1, FIRST, [{0: "2"}])
    await by_kind.trim("builtin:flights", {0: "2"}, FIRST)
    assert texts(log, 0) == ["a", "b", "c"]
    below = await by_kind.maintain("builtin:flights", 4, 1, SECOND, [{0: "2"}])
    assert below == {0: "2"}
    await by_kind.trim("builtin:flights", below, SECOND)
    assert stored(log_url) == 1


async def test_publishers_that_have_been_silent_are_forgotten(logs, log, log_url):
    append(log, "a", publisher="old")
    append(log, "a", publisher="new")
    with psycopg.connect(log_url) as connection:
        connection.execute(
            "UPDATE counterpoise_log.sequences SET appended_at = now() - interval '8 days'"
            " WHERE publisher = 'old'"
        )
    assert await logs.forget_publishers(7 * 86400.0) == 1
    assert (log.next_sequence("old"), log.next_sequence("new")) == (0, 1)


# ------------------------------------------------------------------ times


@pytest.mark.parametrize("way", ["_BY_KEY", "_BY_TIME"])
async def test_the_position_of_a_time_skips_nothing_published_since(logs, log, monkeypatch, way):
    for each in ("_BY_KEY", "_BY_TIME"):
        monkeypatch.setattr(times, each, getattr(times, way))

    def at(seconds):
        return Message(b"", published_at=datetime.fromtimestamp(seconds, UTC))

    # Partition 0 is out of order, 1 lies before, 2 is empty, 3 lies after.
    seconds = [(0, 10), (0, 30), (0, 20), (0, 40), (1, 5), (3, 50)]
    partitions = [partition for partition, _ in seconds]
    log.append(AppendBatch("p", 0, 4, partitions, [at(second) for _, second in seconds]))
    assert await logs.position_at("builtin:flights", 20.0) == {0: "1", 1: "1", 2: "0", 3: "0"}
    assert await logs.position_at("builtin:flights", 35.0) == {0: "3", 1: "1", 2: "0", 3: "0"}
    assert await logs.position_at("builtin:flights", 60.0) == {0: "4", 1: "1", 2: "0", 3: "1"}
    # Later than the last moment that Python's calendar knows.
    late = await logs.position_at("builtin:flights", 253402300800.0)
    assert late == {0: "4", 1: "1", 2: "0", 3: "1"}
    await logs.trim("builtin:flights", {0: "3"})
    assert await logs.position_at("builtin:flights", 0.0) == {0: "3", 1: "0", 2: "0", 3: "0"}


async def test_a_time_is_looked_up_where_fewer_messages_are_read(logs, log, log_url):
    await logs.ensure("builtin:short", 1)
    with psycopg.connect(log_url) as connection:
        # One message a second, and a short log beside them.
        connection.execute(
            "INSERT INTO counterpoise_log.messages (log_id, partition, position, published_at,"
            " value) SELECT log_id, 0, n, to_timestamp(n), '' FROM counterpoise_log.logs,"
            " generate_series(0, CASE name WHEN 'short' THEN 9 ELSE 19999 END) AS n"
        )
        connection.execute(
            "UPDATE counterpoise_log.ends SET next_position = 1 + (SELECT max(position)"
            " FROM counterpoise_log.messages AS m WHERE m.log_id = ends.log_id)"
            " WHERE partition = 0"
        )
        found = connection.execute("SELECT name, log_id FROM counterpoise_log.logs")
        numbers: dict[str, int] = dict(found.fetchall())
    scans = text(
        "SELECT relname, pg_stat_get_xact_numscans(oid) FROM pg_class"
        " WHERE relname IN ('messages_pkey', 'messages_published_at')"
    )
    read = {}
    for name, seconds in (("flights", 19_900), ("flights", 9_900), ("short", 9_900), ("short", 5)):
        async with logs._database.transaction() as connection:
            before = {*await connection.execute(scans)}
            positions = await times.positions_at(connection, numbers[name], seconds)
            used = {*await connection.execute(scans)} - before
            read[name, seconds] = positions.scalars(1).first(), [index for index, _ in used]
    assert read == {
        ("flights", 19_900): (19_900, ["messages_published_at"]),
        ("flights", 9_900): (9_900, ["messages_published_at"]),
        ("short", 9_900): (10, ["messages_pkey"]),
        ("short", 5): (5, ["messages_pkey"]),
    }


async def test_the_age_is_that_of_the_message_at_the_position(logs, log):
    def published(seconds_ago):
        return Message(b"", published_at=datetime.now(UTC) - timedelta(seconds=seconds_ago))

    messages = [*map(published, (7000, 3000, -500))]
    log.append(AppendBatch("p", 0, 4, [0, 0, 2], messages))

    async def ages(*positions):
        return await logs.ages("builtin:flights", dict(positions), seconds=8.0)

    found = await ages((0, "0"), (1, "0"), (2, "0"))
    assert found.keys() == {0, 2}
    assert 7000 <= found[0] < 10_000
    assert found[2] == 0.0
    later = await ages((0, "1"))
    assert 3000 <= later[0] < 6000
    assert await ages((0, "2"), (7, "0")) == {}


async def test_ages_of_many_partitions_read_no_more_than_their_messages(logs, log_url):
    await logs.ensure("builtin:many", 1000)
    with psycopg.connect(log_url) as connection:
        connection.execute(
            "INSERT INTO counterpoise_log.messages (log_id, partition, position, published_at,"
            " value) SELECT log_id, partition, position, now(), ''"
            " FROM counterpoise_log.logs, generate_series(0, 999) AS partition,"
            " generate_series(0, 9) AS position WHERE name = 'many'"
        )
    read = text(
        "SELECT pg_stat_get_xact_tuples_returned('counterpoise_log.messages_pkey'::regclass)"
    )
    asked = dict.fromkeys(range(1000), "3")
    async with logs._database.transaction() as connection:
        found = await connection.execute(
            builtin._AGES, {"name": "many", "partitions": [*asked], "positions": [3] * len(asked)}
        )
        assert len(found.all()) == 1000
        assert await connection.scalar(read) == 1000
    assert (await logs.ages("builtin:many", asked, seconds=8.0)).keys() == asked.keys()


async def test_a_queue_made_again_starts_with_an_empty_log_even_if_the_drop_was_lost(logs):
    first, second = LogOwner("first", "flights", 1000.0), LogOwner("second", "flights", 2000.0)
    assert await logs.ensure("builtin:again", 4, first)
    await logs.set_partition_count("builtin:again", 6, revision=9)
    assert await logs.ensure("builtin:again", 3, second)
    assert await logs.partition_count("builtin:again") == 3
    assert await logs.set_partition_count("builtin:again", 5, revision=2)
    # A replica that still knows only the first queue must neither bring its log back nor resize it.
    assert not await logs.set_partition_count("builtin:again", 1, revision=10, owner=first)
    assert await logs.set_partition_count("builtin:again", 5, revision=3, owner=second)
    assert await logs.discard("builtin:again", [5], owner=first) == frozenset()
    assert await logs.discard("builtin:again", [5], owner=second) == frozenset()
    assert not await logs.ensure("builtin:again", 4, first)
    assert await logs.partition_count("builtin:again") == 5


# ------------------------------------------------------------------ cuts


async def test_a_log_that_was_never_resized_has_no_cuts(logs, log):
    append(log, "a")
    await logs.set_partition_count("builtin:flights", 4, 7)
    for bounds in (log.bounds([0, 9]), await logs.bounds("builtin:flights")):
        assert (bounds.resize, bounds.resized_from, bounds.cuts) == (0, 0, {})


async def test_a_resize_leaves_the_ends_of_its_moment(logs, log):
    append(log, "a", "b", partition=1)
    assert await logs.set_partition_count("builtin:flights", 6, 7)
    append(log, "c", partition=1, first=2, partition_count=6)
    for bounds in (log.bounds(range(6)), await logs.bounds("builtin:flights", range(6))):
        assert (bounds.resize, bounds.resized_from) == (1, 4)
        assert bounds.cuts == {number: "2" if number == 1 else "0" for number in range(6)}
        assert bounds.ends[1] == "3"
    none = await logs.bounds("builtin:flights", ())
    assert (none.resize, none.partition_count, none.ends) == (1, 6, {})


async def test_a_resize_that_is_repeated_or_late_takes_no_cuts(logs, log):
    await logs.set_partition_count("builtin:flights", 6, 7)
    append(log, "a", partition_count=6)
    await logs.set_partition_count("builtin:flights", 6, 9)
    await logs.set_partition_count("builtin:flights", 4, 3)
    bounds = await logs.bounds("builtin:flights")
    assert (bounds.resize, bounds.cuts[0]) == (1, "0")


async def test_the_cuts_are_those_of_the_last_resize_whoever_resizes(logs, log, log_url):
    await logs.set_partition_count("builtin:flights", 6, 7)
    append(log, "a", partition=5, partition_count=6)
    with psycopg.connect(log_url) as connection:  # a replica of a release that knows no cuts
        connection.execute("SELECT counterpoise_log.lock_log('flights', true)")
        connection.execute("UPDATE counterpoise_log.logs SET partition_count = 2")
    bounds = await logs.bounds("builtin:flights")
    assert (bounds.resize, bounds.resized_from, bounds.partition_count) == (2, 6, 2)
    assert (bounds.cuts[5], bounds.cuts[0]) == ("1", "0")


async def test_a_cut_is_taken_after_the_appends_that_the_resize_waits_for(logs, log, log_url):
    open_append = """SELECT counterpoise_log.append(
        'flights', 4, 'slow', 0, '{3}', %s::bytea[], NULL, NULL, NULL)"""
    with psycopg.connect(log_url) as holding:
        holding.execute(open_append, [[b"slow"]])
        resized = asyncio.create_task(logs.set_partition_count("builtin:flights", 8, 7))
        await asyncio.to_thread(until, lambda: waiters(log_url) == 1)
        assert (await logs.bounds("builtin:flights", [3])).resize == 0
        holding.commit()
        assert await resized
    assert (await logs.bounds("builtin:flights", [3])).cuts == {3: "1"}
