"""The migrations of the built-in log: at the same time, repeated, and all the way back."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psycopg
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, make_url

from tests.log_support import migrate_log


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


def test_migrating_over_a_given_connection_and_back(database_url):
    engine = create_engine(make_url(database_url).set(drivername="postgresql+psycopg"))
    config = Config()
    config.set_main_option("script_location", "migrations:log")
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        command.downgrade(config, "base")
    engine.dispose()
    assert tables(database_url) == {"alembic_version"}
    migrate_log(database_url)
    assert "messages" in tables(database_url)
