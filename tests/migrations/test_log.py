"""The migrations of the built-in log, at the same time."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psycopg


def tables(url):
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'counterpoise_log'"
        )
        return {row[0] for row in rows}


def test_concurrent_migrations_take_turns(database_url):
    with ThreadPoolExecutor(2) as pool:
        # One process each, because Alembic's context is global in a process.
        script = f"from tests.log_support import migrate_log; migrate_log({database_url!r})"
        runs = [
            pool.submit(subprocess.run, [sys.executable, "-c", script], check=False, timeout=250)
            for _ in range(2)
        ]
        assert [run.result().returncode for run in runs] == [0, 0]
    assert {"logs", "messages", "alembic_version"} <= tables(database_url)
