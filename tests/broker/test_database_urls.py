"""A URL of the database means the same to both drivers of the service and to the log's clients."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import asyncpg
import psycopg
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from broker.logs.credentials import client_parameters
from broker.postgres import driver
from broker.postgres.embedded import EmbeddedPostgres
from broker.settings import SettingsError, load
from counterpoise.logs import postgres
from counterpoise.logs.address import check_access, parse_log
from counterpoise.logs.builtin.connection import LogConnection
from tests.databases import FAST
from tests.service import settings_for


@pytest.fixture(scope="module", autouse=True)
def _no_environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PG")]:
            patch.delenv(name)
        yield


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
HOSTS = st.sampled_from(
    ["db.example", "10.0.0.1", "[::1]", "[fe80::1%25e]", "%2Frun%2Fa%20b", "one,two"]
)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "host": st.sampled_from(["/run/postgresql", "other.example", "::1", "@abstract", "a:1"]),
        "port": st.sampled_from(["6432", "1"]),
        "dbname": TEXTS,
        "user": TEXTS,
        "password": TEXTS,
        "sslmode": st.sampled_from(["disable", "require", "verify-full"]),
        "sslrootcert": st.sampled_from(["/a b/root.crt", "system"]),
        "sslkey": TEXTS,
        "target_session_attrs": st.just("read-write"),
        "options": st.just("-c a=b"),
    },
)


@st.composite
def urls(draw: st.DrawFn) -> str:
    """As people write them: more or less is encoded, and in one place or another."""
    # What is not encoded may end a part of the URL.
    safe = draw(st.sampled_from(["", "", "", "/:", "@&?#"]))

    def some(texts: st.SearchStrategy[str], before: str) -> str:
        text = draw(st.none() | texts)
        return "" if text is None else before + quote(text, safe=safe)

    login = some(TEXTS, "") + some(TEXTS, ":")
    scheme = draw(st.sampled_from(["postgresql", "postgres", "postgresql+asyncpg"]))
    port = draw(st.sampled_from(["", ":5432", ":"]))
    path = "/" + quote(draw(TEXTS), safe=safe)
    query = "&".join(f"{name}={quote(v, safe=safe)}" for name, v in draw(SETTINGS).items())
    place = f"{login and login + '@'}{draw(HOSTS)}{port}{path}"
    return f"{scheme}://{place}{query and '?' + query}"


def meaning_of(url: str) -> dict[str, str] | None:
    """What libpq reads; None if it refuses the text."""
    try:
        found = conninfo_to_dict(f"postgresql://{url.partition('://')[2]}")
    except (psycopg.Error, UnicodeError):
        return None
    return {name: str(value) for name, value in found.items()}


def given_to_asyncpg(url: str) -> dict[str, Any]:
    """The arguments of its one call. Services of other threads go on connecting meanwhile."""
    found: dict[str, Any] = {}
    really_connect, ours = asyncpg.connect, threading.get_ident()

    async def connect(dsn: str, **given: Any) -> Any:
        if threading.get_ident() != ours:
            return await really_connect(dsn, **given)
        query = dict(parse_qsl(urlsplit(dsn).query, strict_parsing=True)) if "=" in dsn else {}
        found.update(given, **query)
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncpg, "connect", connect)
        asyncio.run(driver.connect(url, {}))
    return found


def names_one_database(meaning: Mapping[str, str]) -> bool:
    """What the service needs of a URL, beyond that libpq takes it."""
    host, port = meaning.get("host", ""), meaning.get("port") or "5432"
    is_one = host != "" and "," not in host and host[0] != "@"
    if ":" in host and host[:1] != "/":
        is_one = postgres.is_ipv6(host)
    return bool(is_one and meaning.get("dbname") and re.fullmatch("[1-9][0-9]{0,4}", port))


@given(urls())
def test_each_reader_of_a_url_reads_what_libpq_reads(url: str) -> None:
    meaning = meaning_of(url)
    if meaning is None or not names_one_database(meaning):
        event("refused")
        with pytest.raises(SettingsError, match=r"should (look like|name one host|name the host)"):
            load(database_url=url)
        return
    settings = load(database_url=url)
    assert settings.database_url is not None
    kept = settings.database_url.get_secret_value()
    full = postgres.read(kept)
    assert meaning.items() <= full.items()
    assert full.keys() - meaning.keys() <= {"user"}
    asked = given_to_asyncpg(kept)
    for name, value in full.items():
        if name == "options":
            assert asked["server_settings"]["options"].startswith(value)
        elif name != "sslmode" or full.get("sslrootcert") != "system":
            assert asked[{"dbname": "database", "sslmode": "ssl"}.get(name, name)] == value
    clients = postgres.written({**client_parameters(kept, tls=False), "user": "u", "password": "p"})
    check_access(parse_log("builtin:orders"), clients)
    theirs = postgres.read(postgres.guarded(clients))
    passed = postgres.HARMLESS | {"dbname"}
    assert {n: v for n, v in full.items() if n in passed}.items() <= theirs.items()


@pytest.mark.long
def test_the_directory_of_a_socket(tmp_path: Path) -> None:
    """As libpq writes it before the path."""
    with tempfile.TemporaryDirectory() as sockets:
        Path(sockets).chmod(0o777)
        own = {**FAST, "unix_socket_directories": sockets}
        with EmbeddedPostgres(tmp_path, settings=own) as url:
            parts = postgres.read(url)
            where = f"{quote(sockets, safe='')}:{parts['port']}"
            login = f"{parts['user']}:{parts['password']}"
            settings = settings_for(f"postgresql://{login}@{where}/{parts['dbname']}")
            assert settings.database_url is not None
            given_url = settings.database_url.get_secret_value()

            async def asked() -> Any:
                connection = await driver.connect(given_url, {})
                try:
                    return await connection.fetchval("SELECT inet_server_addr()")
                finally:
                    await connection.close()

            assert asyncio.run(asked()) is None
            with closing(LogConnection(postgres.guarded(given_url), 10.0)) as connection:
                shown = connection.query("SELECT inet_server_addr()", [], retry=False)
            assert shown == [(None,)]
