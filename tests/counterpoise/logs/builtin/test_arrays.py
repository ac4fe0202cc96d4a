"""Arrays are read as Postgres sends them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from counterpoise.logs.builtin import connection
from counterpoise.logs.builtin.log import PostgresLog


@pytest.mark.parametrize(
    ("kind", "read", "numbers"),
    [
        ("integer", connection.sent_integers, [0, 1, -1, 2**31 - 1, -(2**31), 16777216]),
        (
            "bigint",
            connection.sent_bigints,
            [0, 1, -1, 2**63 - 1, -(2**63), 2**32, -(2**32), 2**31],
        ),
    ],
)
def test_arrays_are_read_as_postgres_sends_them(
    postgres_url: str, kind: str, read: Any, numbers: list[int]
) -> None:
    with psycopg.connect(postgres_url) as database:
        for given in (numbers, numbers[:1]):
            row = database.execute(f"SELECT array_send(%s::{kind}[])", [given]).fetchone()
            assert row is not None
            assert read(row[0]).tolist() == given


def test_arrays_are_taken_as_they_are_sent(log: PostgresLog) -> None:
    log.bounds([0])
    database = log._connection._connection
    assert database is not None
    cases: list[tuple[str, Callable[[Any], connection.SentArray], list[Any]]] = [
        ("integer", connection.integer_array, [0, 1, -1, 2**31 - 1, -(2**31)]),
        ("bigint", connection.bigint_array, [0, 1, -1, 2**63 - 1, -(2**63), 2**32, 2**31]),
        ("bytea", connection.bytea_array, [b"", b"a", b"\0" * 70_000]),
        ("text", connection.text_array, ["", "a", "käse"]),
        ("text", connection.text_array, [None, "a", None]),
        ("text", connection.text_array, [None]),
    ]
    for kind, made, given in cases:
        for values in (given, given[:1], []):
            row = database.execute(
                f"SELECT %b::{kind}[] IS NOT DISTINCT FROM %b::{kind}[]", [made(values), values]
            ).fetchone()
            assert row == (True,), values
