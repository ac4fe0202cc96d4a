"""Each message once in every target, whatever happens to its writers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.counterpoise.spark.sink.mariadb import running_mariadb
from tests.faults.sinks import FAULTS, KINDS, SMALL, Torture, Tortured
from tests.log_support import log_url

__all__ = ["log_url"]

pytestmark = [pytest.mark.xdist_group("processes")]


@pytest.fixture
def mariadb_url() -> Iterator[str]:
    with running_mariadb() as server:
        yield server.new_database()


@pytest.mark.long
@pytest.mark.matrix("kind")
@pytest.mark.parametrize("kind", KINDS)
def test_writers_that_are_killed_frozen_and_robbed_write_each_message_once(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    fixtures = {"postgres": "database_url", "mariadb": "mariadb_url", "queue": "log_url"}
    database = fixtures.get(kind)
    where = str(tmp_path) if database is None else request.getfixturevalue(database)
    result = Torture(kind, where, tmp_path, 1).run(SMALL)
    print(result.table())
    assert result.wrong == []
    assert result.faults == dict.fromkeys(FAULTS, SMALL)


def test_what_is_wrong_is_told() -> None:
    result = Tortured("delta", wrong=["2 messages twice, such as (0, 7)"])
    assert result.complaints() == [
        "SINK INTO DELTA: 2 messages twice, such as (0, 7)",
        "sink into delta: nothing was superseded, so nobody knows",
    ]
    result = Tortured("delta", 10)
    result.outcomes["superseded"] += 1
    assert result.complaints() == []
    result = Tortured("mariadb", not_run="needs a server")
    assert result.table() == "sink into mariadb: not run: needs a server"
    assert result.complaints() == []
