"""`ground` is each store in turn; `postgres` is only the real one.

All tests share one migrated database, emptied before each: migrating takes longer than most tests.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import psycopg
import pytest

from broker.postgres import migrations
from broker.store.ports import Store
from tests.broker.store.support import Ground, MemoryGround, PostgresGround, Replica

EMPTY = """
TRUNCATE counterpoise.queues, counterpoise.flows, counterpoise.partitions, counterpoise.records,
    counterpoise.lineage, counterpoise.trims, counterpoise.conditions, counterpoise.mirror_failures,
    counterpoise.measurements, counterpoise.commit_ages, counterpoise.outages, counterpoise.keys,
    counterpoise.sessions, counterpoise.audit
    RESTART IDENTITY;
UPDATE counterpoise.service SET stamped_at = NULL, gap_seconds = 3, measured_at = NULL,
    mirrored_by = NULL, mirrored_until = NULL;
"""


@pytest.fixture(scope="session")
def migrated_url(postgres_url: str) -> str:
    """A database with the control tables, for all tests of the store."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE store")
    url = urlsplit(postgres_url)._replace(path="/store").geturl()
    migrations.upgrade(url)
    return url


@pytest.fixture
async def postgres(migrated_url: str) -> AsyncIterator[PostgresGround]:
    with psycopg.connect(migrated_url) as connection:
        connection.execute(EMPTY)
    async with AsyncExitStack() as stack:
        yield PostgresGround(migrated_url, stack)


@pytest.fixture(params=["memory", "postgres"])
async def ground(request: pytest.FixtureRequest) -> AsyncIterator[Ground]:
    if request.param == "memory":
        yield MemoryGround()
        return
    url: str = request.getfixturevalue("migrated_url")
    with psycopg.connect(url) as connection:
        connection.execute(EMPTY)
    async with AsyncExitStack() as stack:
        yield PostgresGround(url, stack)


@pytest.fixture
async def store(ground: Ground) -> Store:
    """One replica's store; the service has been serving."""
    store = await ground.store()
    await store.pulse()
    return store


@pytest.fixture
async def orders(store: Store) -> Replica:
    """A queue of four partitions without flows."""
    replica = Replica(store)
    await replica.create(4)
    return replica
