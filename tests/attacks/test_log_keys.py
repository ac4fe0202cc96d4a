"""Credentials of the built-in log end with the key that they were made with.

The contract, *Who may call what*: on all replicas within 5 s. How often the service looks is held
apart, because the time of what is played depends on the machine.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import httpx
import psycopg
import pytest

from broker.calls.callers import REFRESH_SECONDS
from broker.core.access import key_id_of
from broker.service import ENDED_KEYS_SECONDS
from tests.api.access import Guarded, bearer
from tests.attacks.keys import let_end, revoke
from tests.attacks.test_ends_of_keys import END_SECONDS
from tests.databases import is_ended
from tests.service import Service, eventually

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("access")]

QUEUE = "revoked.log"


@pytest.fixture(scope="module", autouse=True)
def _queue(secured: Guarded) -> None:
    secured.create(QUEUE)


def access(service: Service, token: str, purpose: str) -> str:
    """The log's URL with credentials, from this replica."""
    path = f"{service.url}/v1/queues/{QUEUE}/log-access"
    answer = httpx.post(path, json={"purpose": purpose}, headers=bearer(token))
    answer.raise_for_status()
    url: str = answer.json()["access"]["url"]
    return url


def _is_refused(service: Service, token: str, purpose: str) -> bool:
    try:
        access(service, token, purpose)
    except httpx.HTTPStatusError as error:
        return error.response.status_code == 401
    return False


def _without_roles(secured: Guarded, keys: Sequence[str]) -> bool:
    with psycopg.connect(secured.url) as connection:
        left = connection.execute(
            "SELECT count(*) FROM counterpoise_log.clients WHERE key_id = ANY (%s)",
            [[key_id_of(key) for key in keys]],
        ).fetchone()
    return left == (0,)


class Sessions(NamedTuple):
    """Of one role: one that does nothing, one within a transaction, and one amid a statement."""

    idle: psycopg.Connection[Any]
    within: psycopg.Connection[Any]
    amid: threading.Thread

    def are_ended(self) -> bool:
        return not self.amid.is_alive() and all(map(is_ended, (self.idle, self.within)))


@pytest.fixture
def sessions() -> Iterator[Any]:
    with ExitStack() as stack:

        def start(url: str) -> Sessions:
            idle, within, amid = (
                stack.enter_context(closing(psycopg.connect(url, autocommit=True)))
                for _ in range(3)
            )
            within.execute("BEGIN")
            within.execute("SELECT 1")

            def sleep() -> None:
                with pytest.raises(psycopg.OperationalError):
                    amid.execute("SELECT pg_sleep(240)")

            thread = threading.Thread(target=sleep)
            thread.start()
            stack.callback(thread.join)
            stack.callback(amid.cancel_safe)
            return Sessions(idle, within, thread)

        yield start


def test_the_service_looks_often_enough() -> None:
    """A replica may make a role with the key up to its own next look."""
    assert REFRESH_SECONDS + ENDED_KEYS_SECONDS < END_SECONDS - 1


@pytest.mark.matrix("end")
@pytest.mark.parametrize("end", ["revoked", "ends_at"])
def test_a_key_that_ends_takes_its_sessions_with_it(
    secured: Guarded, other: Service, sessions: Any, end: str
) -> None:
    ends_at = datetime.now(UTC) + timedelta(hours=1) if end == "ends_at" else None
    reading = secured.key("consumer", QUEUE, ends_at=ends_at)
    writing = secured.key("publisher", QUEUE, ends_at=ends_at)
    kept_key = secured.key("consumer", QUEUE)
    _, flow = secured.bind(QUEUE, reading)
    replicas = (secured.service, other)
    urls = [
        access(replica, token, purpose)
        for replica in replicas
        for token, purpose in ((reading, "read"), (flow, "read"), (writing, "publish"))
    ]
    assert len(set(urls)) == 6
    kept = [psycopg.connect(access(one, kept_key, "read"), autocommit=True) for one in replicas]
    started = [sessions(url) for url in urls]
    for key in (reading, writing):
        (revoke if end == "revoked" else let_end)(secured, key)
    for one in started:
        eventually(one.are_ended)
    for url in urls:
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)
    # Neither replica gives others.
    for replica in replicas:
        for token, purpose in ((reading, "read"), (flow, "read"), (writing, "publish")):
            eventually(partial(_is_refused, replica, token, purpose))
    for connection in kept:
        connection.execute("SELECT count(*) FROM counterpoise_log.messages")
        connection.close()
    # A replica that had not looked yet may just have made a role.
    eventually(partial(_without_roles, secured, [reading, writing]))
