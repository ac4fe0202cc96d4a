"""Wake-ups between replicas: all others hear each once, and a loss is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

import pytest

from broker.store.ports import Store
from broker.testing.store import MemoryStore
from tests.broker.store.support import Ground, MemoryGround, PostgresGround

HEARING_SECONDS = 60.0
QUIET_SECONDS = 0.2


class Listening:
    """A replica that listens, after the first None."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.heard: asyncio.Queue[Sequence[str] | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for queue_ids in self.store.listen():
            self.heard.put_nowait(queue_ids)

    async def next(self) -> Sequence[str] | None:
        async with asyncio.timeout(HEARING_SECONDS):
            return await self.heard.get()

    async def all(self, number: int) -> set[str]:
        """Waits until so many different queues were named."""
        found: set[str] = set()
        while len(found) < number:
            found.update(await self.next() or ())
        return found

    async def quiet(self) -> bool:
        await asyncio.sleep(QUIET_SECONDS)
        return self.heard.empty()

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.fixture
async def pair(ground: Ground) -> AsyncIterator[tuple[Listening, Listening]]:
    """Two replicas that listen; both have received the first None."""
    replicas = [Listening(await ground.store()) for _ in range(2)]
    for replica in replicas:
        assert await replica.next() is None
    first, second = replicas
    yield first, second
    for replica in replicas:
        await replica.end()


async def test_other_replicas_hear_of_a_change(pair: tuple[Listening, Listening]) -> None:
    first, second = pair
    await first.store.notify(["q1", "q2"])
    assert await second.all(2) == {"q1", "q2"}
    await second.store.notify(["q2"])
    assert await first.next() == ("q2",)
    assert await second.quiet()


async def test_notifying_no_queues_sends_nothing(pair: tuple[Listening, Listening]) -> None:
    first, second = pair
    await first.store.notify([])
    assert await second.quiet()


async def test_more_names_than_a_payload_holds(pair: tuple[Listening, Listening]) -> None:
    first, second = pair
    queue_ids = [str(uuid4()) for _ in range(1000)]
    await first.store.notify(queue_ids)
    assert await second.all(1000) == set(queue_ids)


async def test_pending_notifications_name_each_queue_once(ground: Ground) -> None:
    speaker, hearer = await ground.store(), await ground.store()
    listening = hearer.listen()
    async with asyncio.timeout(HEARING_SECONDS):
        assert await anext(listening) is None
        for _ in range(3):
            await speaker.notify(["q1", "q2"])
        await asyncio.sleep(QUIET_SECONDS)
        assert await anext(listening) == ("q1", "q2")
    await listening.aclose()  # type: ignore[attr-defined]


async def test_after_an_interruption_in_memory_all_is_looked_at() -> None:
    ground = MemoryGround()
    store = await ground.store()
    assert isinstance(store, MemoryStore)
    listening = Listening(store)
    assert await listening.next() is None
    store.interrupt()
    assert await listening.next() is None
    await listening.end()


async def test_a_listener_whose_connection_is_ended_connects_again(
    postgres: PostgresGround,
) -> None:
    speaker = await postgres.store()
    listening = Listening(await postgres.store())
    assert await listening.next() is None
    for n in range(3):
        ended = postgres.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE query LIKE 'LISTEN%' AND datname = current_database()"
        )
        assert ended == [(True,)]
        assert await listening.next() is None
        await speaker.notify([f"q{n}"])
        assert await listening.next() == (f"q{n}",)
    await listening.end()


async def test_foreign_payloads_on_the_channel_are_ignored(postgres: PostgresGround) -> None:
    speaker = await postgres.store()
    listening = Listening(await postgres.store())
    assert await listening.next() is None
    for payload in ("", "hello", "7", "[]", '{"a": 1}', "[7, 8]"):
        postgres.sql("SELECT pg_notify(channel, %s) FROM counterpoise.service", payload)
    await speaker.notify(["q"])
    assert "q" in await listening.all(1)
    await listening.end()


async def test_stopping_ends_listening(postgres: PostgresGround) -> None:
    store = await postgres.store()
    listening = Listening(store)
    assert await listening.next() is None
    await store.stop()
    async with asyncio.timeout(HEARING_SECONDS):
        await listening._task
