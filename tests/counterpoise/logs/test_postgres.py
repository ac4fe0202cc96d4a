"""A URL of Postgres has one meaning, and a connection the settings that it needs."""

from __future__ import annotations

import os

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.pq import Conninfo

from counterpoise.logs import LogError, LogUnavailable, postgres
from counterpoise.logs.builtin.connection import LogConnection

NAMES = sorted(one.keyword.decode() for one in Conninfo.get_defaults())
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
HOSTS = TEXTS | st.sampled_from(["db.example", "10.0.0.1", "::1", "fe80::1%eth0", "/run/a b", "@x"])
PARAMETERS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(NAMES, TEXTS),
        "host": HOSTS,
        "port": st.integers(1, 65535).map(str) | st.sampled_from(["", "1,2", "1,"]),
    },
)


@given(PARAMETERS)
def test_what_is_written_is_read_again(parameters: dict[str, str]) -> None:
    assert postgres.read(postgres.written(parameters)) == parameters


@pytest.mark.parametrize(
    ("url", "meaning"),
    [
        ("postgresql://u:p@%2Fdir:1/db", {"host": "/dir", "port": "1"}),
        ("postgres://u:p@h/a%20b", {"dbname": "a b"}),
        ("postgresql+psycopg://h/d?dbname=a%20b", {"dbname": "a b"}),
        ("postgresql://u:p@one/db?host=two&ssl=true", {"host": "two", "sslmode": "require"}),
    ],
)
def test_the_meaning_is_that_of_libpq(url: str, meaning: dict[str, str]) -> None:
    assert meaning.items() <= postgres.read(url).items()


@pytest.mark.parametrize(
    "url",
    [
        "hunter2",
        "redis://u:hunter2@h/d",
        "postgresql:/u:hunter2@h/d",
        "postgresql://u:hunter2@h:port/d",
        "postgresql://u:hunter2@h:0/d",
        "postgresql://u:hunter2@h:1,i:65536/d",
        "postgresql://u:hunter2@h/d\0",
        "postgresql://u:hunter2@h/%00",
        "postgresql://u:hunter2@h/%ff",
        "postgresql://u:hunter2@h/\udcff",
        "postgresql://u:hunter2@h/d?hunter2",
        "postgresql://u:hunter2@h/d?hunter2=1",
    ],
)
def test_another_text_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(LogError) as refusal:
        postgres.read(url)
    assert "hunter2" not in f"{refusal.value} {refusal.value.__cause__}"


LOGIN = {"user": "reader", "password": "p w", "dbname": "a/b c"}
OTHERS = sorted({*NAMES} - postgres.HARMLESS - LOGIN.keys())


@given(
    st.dictionaries(st.sampled_from(sorted(postgres.HARMLESS - {"port"})), TEXTS),
    st.sets(st.sampled_from(OTHERS)),
)
def test_an_access_that_a_service_gives_is_harmless_and_leaves_nothing_to_the_environment(
    harmless: dict[str, str], others: set[str]
) -> None:
    given = {**harmless, **LOGIN}
    url = postgres.written({**given, **dict.fromkeys(others, "of the service's machine")})
    guarded = postgres.read(postgres.guarded(url))
    assert given.items() <= guarded.items()
    assert "of the service's machine" not in guarded.values()
    variables = {one.keyword.decode() for one in Conninfo.get_defaults() if one.envvar is not None}
    # Nothing stands for no service. Whom this machine trusts is its own matter, if somebody asks.
    verifies = given.get("sslmode", "").startswith("verify")
    trust = {"sslrootcert", "sslcrl", "sslcrldir"} if verifies else set()
    assert variables - guarded.keys() == {"service", *trust}


def test_the_environment_completes_a_url_and_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)
    before = dict(os.environ)
    variables = {"PGPASSWORD": "p", "PGPORT": "6432", "PGSSLMODE": "require", "PGHOSTADDR": "::1"}
    for name, value in {**variables, "PGTZ": "nowhere", "PGSERVICE": "nowhere"}.items():
        monkeypatch.setenv(name, value)
    names = ["password", "port", "sslmode", "sslcert"]
    given = {"host": "h", "port": "1"}
    assert postgres.completed(given, names) == {**given, "password": "p", "sslmode": "require"}
    postgres.forget_environment()
    assert dict(os.environ) == before


def test_settings_that_an_older_server_does_not_know_are_left_out(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses a connection that sets them."""
    monkeypatch.setattr(postgres, "_LATER", ("of_a_later_release", "of_the_last_release"))
    for name in postgres._LATER:
        monkeypatch.setitem(postgres.SETTINGS, name, "0")
    connection = LogConnection(database_url, 10.0)
    shown = "SELECT current_setting('default_transaction_isolation')"
    for _ in range(2):
        assert connection.query(shown, [], retry=False) == [("read committed",)]
        connection.close()


def test_a_pooler_that_refuses_settings_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As pgbouncer does it."""

    def connect(*_: object, **__: object) -> None:
        raise psycopg.OperationalError("FATAL:  unsupported startup parameter: options")

    monkeypatch.setattr(psycopg.Connection, "connect", connect)
    connection = LogConnection("postgresql://u:p@127.0.0.1/d", 10.0)
    with pytest.raises(LogError, match="give that of Postgres itself"):
        connection.query("SELECT 1", [], retry=False)


def test_a_connection_that_is_not_free_is_made_anew(postgres_url: str) -> None:
    """As one is whose server was ended amid a statement: it is not broken, and takes no other."""
    connection = LogConnection(postgres_url, 60)

    def leave_a_statement_under_way() -> None:
        connection.query("SELECT 1", [], retry=True)
        assert connection._connection is not None
        connection._connection.pgconn.send_query(b"SELECT pg_sleep(60)")

    try:
        leave_a_statement_under_way()
        assert connection.query("SELECT 2", [], retry=True) == [(2,)]
        leave_a_statement_under_way()
        with pytest.raises(LogUnavailable, match="already in progress"):
            connection.query("SELECT 3", [], retry=False)
        assert connection.query("SELECT 4", [], retry=False) == [(4,)]
    finally:
        connection.close()
