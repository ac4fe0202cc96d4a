"""Whether the database can write: a query that does not fit into memory goes to its disk.

A database with a full disk, or whose data directory is gone, may go on answering and even updating
what it has in memory. A new file, written and removed at once, shows both: creating it needs the
directory, and filling it needs room. It needs no table and leaves nothing behind.
"""

from __future__ import annotations

import psycopg

from broker.postgres.migrations import CONNECT_SECONDS, DatabaseUnreachable

# Numbers that are put aside before they are counted: almost a megabyte.
_SPILL = "SELECT count(*) FROM generate_series(1, 50000)"
_MEMORY = "SET LOCAL work_mem = '64kB'"
_MILLISECONDS = 5000


class CannotWrite(Exception):
    """The database cannot write; `code` is its SQLSTATE."""

    def __init__(self, reason: str, code: str | None) -> None:
        super().__init__(reason)
        self.code = code


def try_write(database_url: str) -> None:
    """Let the database write a file. Blocks. Raises CannotWrite and DatabaseUnreachable."""
    try:
        connection = psycopg.connect(database_url, connect_timeout=CONNECT_SECONDS)
    except psycopg.Error as error:
        raise DatabaseUnreachable(_line(error)) from None
    try:
        with connection:
            connection.execute(f"SET LOCAL statement_timeout = {_MILLISECONDS}")
            connection.execute(_MEMORY)
            connection.execute(_SPILL)
    except psycopg.Error as error:
        raise CannotWrite(_line(error), error.sqlstate) from None


def _line(error: psycopg.Error) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
