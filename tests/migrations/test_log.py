"""The migrations of the built-in log: at the same time, repeated, and all the way back."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import urlsplit

import psycopg

from counterpoise.logs.builtin.log import PostgresLog
from tests.log_support import append, downgrade_log, migrate_log, texts, with_logs


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


def test_migrating_back(database_url):
    migrate_log(database_url)
    downgrade_log(database_url, "base")
    assert tables(database_url) == {"alembic_version"}
    migrate_log(database_url)
    assert "messages" in tables(database_url)


def test_statistics_that_were_taken_before_are_deleted_and_nothing_else(database_url):
    """By an owner of the tables that is no superuser, as in a managed Postgres."""
    parts, name = urlsplit(database_url), "owner_of_statistics"
    url = parts._replace(netloc=f"{name}:owner@{parts.hostname}:{parts.port}").geturl()
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'owner'")
        admin.execute(f"GRANT CREATE ON DATABASE {parts.path[1:]} TO {name}")
        migrate_log(url)
        downgrade_log(url, "log_0009")
        with_logs(url, lambda logs: logs.ensure("builtin:flights", 4))
        with closing(PostgresLog("flights", url)) as log:
            append(log, "a", "b", "c")
            # Postgres keeps those of several columns elsewhere.
            admin.execute(
                "CREATE STATISTICS counterpoise_log.of_several (mcv) ON partition, position, value"
                " FROM counterpoise_log.messages"
            )
            admin.execute("ANALYZE")
            of_ours = (
                "SELECT (SELECT count(*) FROM pg_stats WHERE schemaname = 'counterpoise_log'"
                " AND tablename <> 'alembic_version'), (SELECT count(*) FROM pg_statistic_ext_data)"
            )
            ((columns, extended),) = admin.execute(of_ours).fetchall()
            assert columns > 20
            assert extended == 1
            migrate_log(url)
            assert admin.execute(of_ours).fetchone() == (0, 0)
            admin.execute("ANALYZE")
            assert admin.execute(of_ours).fetchone() == (0, 0)
            assert texts(log, 0) == ["a", "b", "c"]
            # Numbers of logs go on, and a resize still takes the cuts.
            with_logs(url, lambda logs: logs.ensure("builtin:others", 1))
            with_logs(url, lambda logs: logs.set_partition_count("builtin:flights", 2))
            assert log.bounds([0]).cuts == {0: "3"}
            numbers = admin.execute("SELECT log_id FROM counterpoise_log.logs ORDER BY 1")
            assert numbers.fetchall() == [(1,), (2,)]
        admin.execute(f"DROP OWNED BY {name}")
        admin.execute(f"DROP ROLE {name}")
