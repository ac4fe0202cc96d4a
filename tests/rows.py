"""How many rows the tables of the service have."""

from __future__ import annotations

import psycopg


def rows(url: str) -> dict[str, int]:
    """By table, of both schemas."""
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
            " WHERE schemaname LIKE 'counterpoise%' ORDER BY 1"
        ).fetchall()
        counts = " UNION ALL ".join(f"SELECT '{name}', count(*) FROM {name}" for (name,) in tables)
        return dict(connection.execute(counts.encode()).fetchall())
