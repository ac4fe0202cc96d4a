"""Arrays are read as Postgres sends them."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from counterpoise.logs.builtin import arrays


@pytest.mark.parametrize(
    ("kind", "read", "numbers"),
    [
        ("integer", arrays.sent_integers, [0, 1, -1, 2**31 - 1, -(2**31), 16777216]),
        ("bigint", arrays.sent_bigints, [0, 1, -1, 2**63 - 1, -(2**63), 2**32, -(2**32), 2**31]),
    ],
)
def test_arrays_are_read_as_postgres_sends_them(
    postgres_url: str, kind: str, read: Any, numbers: list[int]
) -> None:
    with psycopg.connect(postgres_url) as connection:
        for given in (numbers, numbers[:1]):
            row = connection.execute(f"SELECT array_send(%s::{kind}[])", [given]).fetchone()
            assert row is not None
            assert read(row[0]).tolist() == given
