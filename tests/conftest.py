"""Fixtures for every test: a real Postgres, and a fresh database in it.

    def test_something(database_url):  # postgresql://counterpoise:…@127.0.0.1:…/test_1
        with psycopg.connect(database_url) as connection:
            ...

* `postgres_url` (session): one server for the whole run, the embedded one, in a temporary
  directory, with `fsync` off. It is started by the first test that asks for it (about a second).
* `database_url` (function): a new, empty database in that server, dropped afterwards with
  whatever is still connected to it. A test may do to it what it likes, and needs no clean-up. Two
  services on one database are two clients of the same URL.

Tests that are about starting, stopping or killing Postgres itself start their own
`EmbeddedPostgres`.

Hypothesis knows no deadline of an example here: how long one takes is up to the machine, and what
never ends is ended by the limit of the test.
"""

import itertools
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from broker.embedded import EmbeddedPostgres

# Services over such databases: `service`, `services`, `served`.
pytest_plugins = ["tests.service"]

hypothesis_settings.register_profile(
    "counterpoise", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("counterpoise")

# A run in the background of a shell ignores Ctrl-C, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Data of a test is worth nothing after a crash, so nothing waits for the disk.
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a running Postgres; its database is to be left alone (see `database_url`)."""
    directory: Path = tmp_path_factory.mktemp("postgres")
    with EmbeddedPostgres(directory, settings=FAST) as url:
        yield url


@pytest.fixture
def database_url(postgres_url: str) -> Iterator[str]:
    """The URL of a new, empty database."""
    name = f"test_{next(_numbers)}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
