"""Wake-ups between replicas: NOTIFY after a commit, LISTEN on a separate connection.

A pooled connection would lose its LISTEN, and an unused connection does not notice that its peer is
gone. Hence the separate connection and the heartbeat. After every connect there is a None (check
all queues), for notifications that were missed in between. Payloads only name queues; all else is
read from tables.

Whoever may connect to the database may LISTEN and NOTIFY on each channel that it knows, also the
clients of a log in it. So the channel has a random name, which only the tables say.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import asyncpg
import orjson

from broker.store.ports import StoreUnavailable
from counterpoise.backoff import Backoff, Pauses

CHANNEL = "SELECT channel FROM counterpoise.service WHERE id = 1"
# Postgres refuses payloads of 8,000 bytes or more.
MOST_BYTES = 7900
CONNECT_AGAIN = Backoff(first_seconds=0.1, longest_seconds=5.0)


class Notifications:
    """The notifications that one replica sends and receives; it does not receive its own."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[asyncpg.Connection]],
        replica_id: str,
        heartbeat_seconds: float = 5.0,
    ) -> None:
        """`connect` raises StoreUnavailable."""
        self._connect = connect
        self._replica_id = replica_id
        self._heartbeat_seconds = heartbeat_seconds
        self._stopped = asyncio.Event()

    def payloads(self, queue_ids: Sequence[str]) -> list[str]:
        """JSON arrays of this replica's id and queue ids, none above what Postgres takes."""
        payloads: list[str] = []
        head = orjson.dumps([self._replica_id])[:-1]
        body = b""
        for queue_id in dict.fromkeys(queue_ids):
            item = b"," + orjson.dumps(queue_id)
            if len(head) + len(body) + len(item) + 1 > MOST_BYTES:
                payloads.append((head + body + b"]").decode())
                body = b""
            body += item
        if body:
            payloads.append((head + body + b"]").decode())
        return payloads

    def close(self) -> None:
        """Ends `listen`."""
        self._stopped.set()

    async def listen(self) -> AsyncIterator[Sequence[str] | None]:
        """See `ports.Store.listen`. Connects again whenever the connection is lost."""
        pauses = Pauses(CONNECT_AGAIN)
        while not self._stopped.is_set():
            try:
                connection = await self._connect()
            except StoreUnavailable:
                # Replicas must not come back all at once.
                await self._pause(pauses.failed(random.random()))
                continue
            hearing = _Hearing(self._replica_id)
            try:
                channel = await connection.fetchval(CHANNEL)
                await connection.add_listener(channel, hearing.heard)
                connection.add_termination_listener(hearing.ended)
                pauses.succeeded()
                yield None
                while await self._something(connection, hearing):
                    queue_ids = hearing.take()
                    if queue_ids:
                        yield queue_ids
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await self._pause(pauses.failed(random.random()))
            finally:
                connection.terminate()

    async def _something(self, connection: asyncpg.Connection, hearing: _Hearing) -> bool:
        """Waits for a notification; False when the connection is lost or `close` was called."""
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            while True:
                event = asyncio.ensure_future(hearing.event.wait())
                await asyncio.wait(
                    (event, stopped),
                    timeout=self._heartbeat_seconds,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                event.cancel()
                if stopped.done() or hearing.over:
                    return False
                if hearing.event.is_set():
                    return True
                await connection.execute("SELECT 1", timeout=self._heartbeat_seconds)
        finally:
            stopped.cancel()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            return


class _Hearing:
    """The notifications of one connection that were not taken yet."""

    def __init__(self, replica_id: str) -> None:
        self.event = asyncio.Event()
        self.over = False
        self._replica_id = replica_id
        self._queue_ids: dict[str, None] = {}

    def heard(self, _: object, __: int, ___: str, payload: object) -> None:
        replica_id, *queue_ids = _parsed(str(payload))
        if queue_ids and replica_id != self._replica_id:
            self._queue_ids.update(dict.fromkeys(queue_ids))
            self.event.set()

    def ended(self, _: object) -> None:
        self.over = True
        self.event.set()

    def take(self) -> Sequence[str]:
        self.event.clear()
        queue_ids = tuple(self._queue_ids)
        self._queue_ids.clear()
        return queue_ids


def _parsed(payload: str) -> list[str]:
    """The id of the sending replica and its queues; one empty string if no replica sent it."""
    try:
        names = orjson.loads(payload)
    except ValueError:
        return [""]
    ours = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    return names if ours else [""]
