"""What a client of the log makes Postgres write into its own log, on the disk of everybody."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from tests.attacks.bystander import Bystander
from tests.service import Service

pytestmark = pytest.mark.long

LARGE = "x" * 10_000
NOTHING = {
    "log_min_messages": "fatal",
    "log_error_verbosity": "terse",
    "log_min_error_statement": "panic",
}


@pytest.fixture
def reader(target: Service, name_of_a_queue: Callable[[], str]) -> Iterator[str]:
    """The credentials of a flow."""
    name = name_of_a_queue()
    with target.http as http:
        http.post("/queues", json={"name": name, "partition_count": 1}).raise_for_status()
        bound = http.post(f"/queues/{name}/flows", json={"client_name": "attacker"})
        url: str = bound.raise_for_status().json()["log_access"]["url"]
        yield url
        http.delete(f"/queues/{name}?force=true").raise_for_status()


SETTINGS: list[LiteralString] = [
    "SELECT 1",
    "SET debug_print_parse = on; SET debug_print_rewritten = on; SET debug_print_plan = on",
    "SET log_parameter_max_length_on_error = -1",
    "SET log_parameter_max_length_on_error = -1; SET transaction_timeout = '1ms'",
]
STATEMENTS: list[tuple[str, list[str]]] = [
    (f"SELECT '{LARGE}', pg_sleep(0.01)", []),
    (f"SELECT '{LARGE}', 1 / 0", []),
    (f"SELECT '{LARGE}'::integer", []),
    ("SELECT pg_sleep(0.01), 1 / (length(%s) - 1)", [LARGE]),
    ("SELECT %s::text::integer", [LARGE]),
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_nothing_that_a_client_sends_is_written_into_it(
    reader: str, postgres_directory: Path, settings: LiteralString, bystander: Bystander
) -> None:
    written = postgres_directory / "postgres.log"
    before = written.stat().st_size
    for statement, parameters in STATEMENTS:
        with connected(reader) as client, contextlib.suppress(psycopg.Error):
            client.execute(settings)
            client.execute(statement.encode(), parameters)
    assert written.read_text()[before:].count(LARGE[:100]) == 0


def test_no_client_has_more_of_it_written(reader: str) -> None:
    with connected(reader) as client:
        client.execute("RESET ALL")
        for name, value in NOTHING.items():
            for statement in (
                f"SET {name} = 'error'",
                f"ALTER ROLE CURRENT_USER SET {name} = 'error'",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    client.execute(statement.encode())
            assert client.execute(f"SHOW {name}".encode()).fetchone() == (value,)


def connected(url: str) -> closing[psycopg.Connection[Any]]:
    return closing(psycopg.connect(url, autocommit=True))
