"""What credentials of one built-in log show of another one besides answers: estimates of the
planner, counts of what it passed over, refusals.

Row-level security hides the rows, and a client may send any SQL (migrations/log/sql/access.sql). So
each attack asks the same for something that is in the other log and for something that is nowhere,
and must not see a difference. The values asked for are as the log's owner finds them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import product
from typing import Any, LiteralString, NamedTuple

import psycopg
import pytest
from psycopg import sql

from counterpoise.logs import AppendBatch, Message
from counterpoise.logs.builtin.log import PostgresLog
from tests.attacks.test_log_credentials import Stage, connected, rows, stage

pytestmark = pytest.mark.long

__all__ = ["stage"]

READABLE = ("logs", "partition_rows", "ends", "partitions", "messages")
# By type, what is in no log.
NOWHERE = {
    "integer": "987654321",
    "bigint": "987654321987",
    "text": "nowhere",
    "name": "nowhere",
    "bytea": "\\xffff",
    "jsonb": '["nowhere"]',
    "uuid": "00000000-0000-0000-0000-000000000000",
    "timestamp with time zone": "1999-01-01",
}
# Ways to the rows, by settings of the planner that are everybody's.
WAYS: dict[str, LiteralString] = {
    "as it likes": "",
    "all rows": "SET enable_indexscan = off; SET enable_indexonlyscan = off;"
    " SET enable_bitmapscan = off",
    "by an index": "SET enable_seqscan = off; SET enable_bitmapscan = off",
    "by a bitmap": "SET enable_seqscan = off; SET enable_indexscan = off;"
    " SET enable_indexonlyscan = off",
    "by a summary": "SET enable_seqscan = off; SET cpu_index_tuple_cost = 1000000",
    # The order of conditions is that of their costs.
    "conditions for nothing": "SET enable_indexscan = off; SET enable_bitmapscan = off;"
    " SET enable_indexonlyscan = off; SET cpu_operator_cost = 0",
}
CONDITIONS: tuple[LiteralString, ...] = (
    "{one} = {value}",
    "{one} >= {value} AND {one} <= {value}",
)
SHOWN: tuple[LiteralString, ...] = (
    "",
    "EXPLAIN (FORMAT JSON) ",
    "EXPLAIN (ANALYZE, FORMAT JSON) ",
)
COUNTED = re.compile(r"Rows|Loops|Cost|Blocks|Searches|Fetches|Width")


class Secret(NamedTuple):
    """A value that no row of the client's own log has, in this column of the log's tables."""

    table: str
    column: str
    kind: str
    value: str


@pytest.fixture
def owner(stage: Stage) -> Iterator[psycopg.Connection[Any]]:
    """Of the log's tables. The other log has three kinds of messages, and statistics were taken."""
    stage.http.patch(f"/queues/{stage.theirs}", json={"partition_count": 3}).raise_for_status()
    database = stage.service.settings.database_url
    assert database is not None
    url = database.get_secret_value()
    with closing(PostgresLog(stage.theirs, url)) as log:
        log.append(
            AppendBatch(
                "their publisher",
                0,
                3,
                [number % 3 for number in range(300)],
                [
                    Message(b"secret %d" % (number % 2), f"patient-{number % 3}", {"ward": "7"})
                    for number in range(300)
                ],
            )
        )
    with connected(url) as owner:
        owner.execute(
            "VACUUM ANALYZE counterpoise_log.logs, counterpoise_log.partition_rows,"
            " counterpoise_log.ends, counterpoise_log.messages, counterpoise_log.publishers,"
            " counterpoise_log.sequences, counterpoise_log.clients"
        )
        # For the newest messages, too, it notes the first and the last time.
        owner.execute("SELECT brin_summarize_new_values('counterpoise_log.messages_published_at')")
        yield owner


def secrets_of(owner: psycopg.Connection[Any], stage: Stage, *, readable: bool) -> list[Secret]:
    """One for each column, as far as there is one."""
    columns = owner.execute(
        "SELECT relname, attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " JOIN pg_class ON pg_class.oid = attrelid"
        " WHERE relnamespace = 'counterpoise_log'::regnamespace AND relkind IN ('r', 'v')"
        " AND attnum > 0 AND NOT attisdropped AND relname <> 'alembic_version'"
        " AND (relname = ANY (%s)) = %s",
        [list(READABLE), readable],
    ).fetchall()
    own = "SELECT {column} FROM {table} WHERE {column} IS NOT NULL AND log_id = "
    own += "(SELECT log_id FROM counterpoise_log.logs WHERE name = {mine})"
    any_of_them = "SELECT {column}::text FROM {table} WHERE {column} IS NOT NULL"
    found = []
    for table, column, kind in columns:
        others = f"{any_of_them} AND {{column}} NOT IN ({own})" if readable else any_of_them
        statement = sql.SQL(f"{others} ORDER BY 1 DESC LIMIT 1").format(
            column=sql.Identifier(column),
            table=sql.Identifier("counterpoise_log", table),
            mine=sql.Literal(stage.mine),
        )
        for (value,) in owner.execute(statement).fetchall():
            found.append(Secret(table, column, kind, value))
    return found


def asked_for(secret: Secret, condition: str, value: str) -> sql.Composed:
    # The smallest selectivity becomes a number of rows.
    return sql.SQL(
        f"SELECT 1 FROM {{}} AS one, generate_series(1, 1000000) WHERE {condition}"
    ).format(
        sql.Identifier("counterpoise_log", secret.table),
        one=sql.Identifier("one", secret.column),
        value=sql.SQL(f"{{}}::{secret.kind}").format(sql.Literal(value)),
    )


def counted(node: dict[str, Any]) -> list[Any]:
    """The shape of a plan, and all numbers in it but times."""
    numbers = {name: one for name, one in node.items() if COUNTED.search(name)}
    return [node["Node Type"], numbers, *map(counted, node.get("Plans", ()))]


def outcome(connection: psycopg.Connection[Any], statement: sql.Composed) -> Any:
    try:
        found = connection.execute(statement).fetchall()
    except psycopg.Error as error:
        return error.sqlstate, error.diag.message_primary
    if isinstance(found[0][0] if found else None, list):
        return [counted(plan["Plan"]) for ((plan,),) in found]
    return found


def test_a_key_of_another_log_cannot_be_bisected(
    stage: Stage, owner: psycopg.Connection[Any]
) -> None:
    """The smallest way: the number of rows that the planner estimates, for whom it may be."""
    estimated = []
    for url in (stage.reader, stage.writer, stage.bind(stage.theirs)["log_access"]["url"]):
        with connected(url) as client:
            estimated += [
                outcome(
                    client,
                    sql.SQL(
                        "EXPLAIN (FORMAT JSON) SELECT 1 FROM counterpoise_log.messages AS m,"
                        " generate_series(1, 1000000) WHERE m.key >= {} AND m.key < {}"
                    ).format(first, after),
                )
                for first, after in (("p", "q"), ("q", "r"), ("patient-2", "patient-3"))
            ]
    assert isinstance(estimated[0][0], list)
    assert estimated == [estimated[0]] * 9


@pytest.mark.matrix("way")
@pytest.mark.parametrize("way", WAYS)
def test_a_plan_and_its_counts_are_the_same_whatever_is_in_another_log(
    stage: Stage, owner: psycopg.Connection[Any], way: str
) -> None:
    """And so are refusals: a publisher may read nothing, and no row says so sooner than another."""
    secrets = secrets_of(owner, stage, readable=True)
    assert {"name", "log_id", "partition", "position", "next_position", "published_at"} | {
        "key",
        "value",
        "headers",
    } <= {secret.column for secret in secrets}
    seen = []
    for url in (stage.reader, stage.writer):
        with connected(url) as attacker:
            attacker.execute(WAYS[way])
            for secret, condition, how in product(secrets, CONDITIONS, SHOWN):
                there, nowhere = (
                    outcome(attacker, sql.SQL(how) + asked_for(secret, condition, value))
                    for value in (secret.value, NOWHERE[secret.kind])
                )
                if there != nowhere:
                    seen.append((secret, condition, how, there, nowhere))
    assert not seen


def test_plans_of_tables_that_no_client_may_read_show_nothing_either(
    stage: Stage, owner: psycopg.Connection[Any]
) -> None:
    """Postgres plans first and refuses then; what it has planned, it shows to who asks for it."""
    secrets = secrets_of(owner, stage, readable=False)
    assert {"publisher", "role", "log", "holder"} <= {secret.column for secret in secrets}
    with connected(stage.writer) as attacker:
        printed: list[str] = []
        attacker.add_notice_handler(lambda told: printed.append(told.message_detail or ""))
        attacker.execute("SET client_min_messages = log; SET debug_print_plan = on")

        def estimates(secret: Secret, value: str) -> list[str]:
            printed.clear()
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                attacker.execute(asked_for(secret, "{one} >= {value}", value))
            found = re.findall(r"plan_rows (\S+)", "".join(printed))
            assert found
            return found

        for secret in secrets:
            expected = estimates(secret, NOWHERE[secret.kind])
            assert estimates(secret, secret.value) == expected, secret


def test_no_column_and_no_index_of_the_log_has_statistics(
    stage: Stage, owner: psycopg.Connection[Any]
) -> None:
    of_ours = "JOIN pg_class ON pg_class.oid = {} WHERE relnamespace::regnamespace::text"
    of_ours += " = 'counterpoise_log' AND relname <> 'alembic_version'"
    for catalog, table in (("pg_statistic", "starelid"), ("pg_statistic_ext", "stxrelid")):
        found = owner.execute(f"SELECT * FROM {catalog} {of_ours.format(table)}".encode())
        assert not found.fetchall()


def test_no_catalog_holds_anything_of_another_log(
    stage: Stage, owner: psycopg.Connection[Any]
) -> None:
    """While a reader and a publisher of the other log are in the middle of their work."""
    theirs = stage.bind(stage.theirs)["log_access"]["url"], stage.access(stage.theirs, "publish")
    readable: LiteralString = (
        "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'v')"
        " AND relnamespace = 'pg_catalog'::regnamespace AND has_table_privilege(oid, 'SELECT')"
    )
    with ExitStack() as stack:
        reading, publishing = (stack.enter_context(closing(psycopg.connect(url))) for url in theirs)
        found = reading.execute(
            "SELECT count(*) FROM counterpoise_log.messages AS m JOIN counterpoise_log.logs"
            f" USING (log_id) WHERE name = '{stage.theirs}' AND key = 'patient-1'".encode()
        )
        assert found.fetchall() == [(100,)]
        publishing.execute(
            "SELECT counterpoise_log.append(%s, 3, 'their publisher', 300, ARRAY[0],"
            " ARRAY['secret 0'::bytea], ARRAY['patient-0'], NULL, NULL)",
            [stage.theirs],
        )
        words = [f"%{word}%" for word in (stage.theirs, "patient-", "secret 0", "their publisher")]
        for url in (stage.reader, stage.writer):
            attacker = stack.enter_context(connected(url))
            catalogs = [name for (name,) in attacker.execute(readable).fetchall()]
            assert {"pg_class", "pg_roles", "pg_stat_activity", "pg_stats"} <= {*catalogs}
            for catalog in catalogs:
                query = f"SELECT one::text FROM {catalog} AS one WHERE one::text LIKE ANY (%s)"
                try:
                    shown = attacker.execute(query.encode(), [words]).fetchall()
                except psycopg.errors.InsufficientPrivilege:
                    continue
                assert not shown, catalog


# By name, how many arguments; the first one is the log.
CALLS = {
    "watch": 3,
    "still_waits": 4,
    "wake": 2,
    "append": 9,
    "append_by_range": 8,
    "append_numbered": 9,
    "append_numbered_by_range": 8,
    "next_sequence": 2,
    "ranges": 1,
    "readable_log": 0,
    "readable_name": 0,
}


def test_a_client_names_four_tables_a_view_some_functions_and_nothing_else(stage: Stage) -> None:
    for url in (stage.reader, stage.writer):
        tables = rows(
            url,
            "SELECT relname, has_table_privilege(pg_class.oid, 'SELECT') FROM pg_class"
            " WHERE relnamespace::regnamespace::text !~ '^(pg_|information_schema)'"
            " AND relkind <> 'i' AND (CASE relkind"
            " WHEN 'S' THEN has_sequence_privilege(pg_class.oid, 'SELECT, USAGE, UPDATE')"
            " ELSE has_any_column_privilege(pg_class.oid, 'SELECT, INSERT, UPDATE, REFERENCES')"
            " OR has_table_privilege(pg_class.oid, 'DELETE, TRUNCATE, TRIGGER') END)",
        )
        assert {name for name, _ in tables} == set(READABLE)
        # To the table itself a right would include the places of all rows, and locks.
        assert not any(whole for _, whole in tables)
        functions = rows(
            url,
            "SELECT proname, pronargs FROM pg_proc"
            " WHERE pronamespace::regnamespace::text !~ '^(pg_|information_schema)'"
            " AND has_schema_privilege(pronamespace, 'USAGE')"
            " AND has_function_privilege(pg_proc.oid, 'EXECUTE')",
        )
        assert sorted(functions) == sorted(CALLS.items())


def test_a_function_says_the_same_of_another_log_and_of_none(stage: Stage) -> None:
    for url, (call, arguments) in product((stage.reader, stage.writer), CALLS.items()):
        if not arguments:
            continue
        said = []
        for log in (stage.theirs, "nowhere"):
            given = [sql.Literal(log), *[sql.NULL] * (arguments - 1)]
            statement = sql.SQL("SELECT counterpoise_log.{}({})").format(
                sql.Identifier(call), sql.SQL(", ").join(given)
            )
            with connected(url) as attacker:
                said.append(str(outcome(attacker, statement)).replace(log, ""))
        assert said[0] == said[1]
        assert "not valid for " in said[0]
