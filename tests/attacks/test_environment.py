"""The environment of libpq, which speaks of another database than the service's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from counterpoise.consumer import Consumer
from counterpoise.publisher import Publisher
from tests.broker.test_cli import run
from tests.service import ServeProcess

pytestmark = pytest.mark.long

ELSEWHERE = {
    "PGHOST": "127.0.0.99",
    "PGHOSTADDR": "127.0.0.99",
    "PGPORT": "1",
    "PGDATABASE": "elsewhere",
    "PGUSER": "somebody",
    "PGPASSWORD": "another",
    "PGSSLMODE": "require",
    "PGSSLNEGOTIATION": "direct",
    "PGSSLROOTCERT": "system",
    "PGSSLCERTMODE": "require",
    "PGSSLMINPROTOCOLVERSION": "TLSv1.3",
    "PGCHANNELBINDING": "require",
    "PGGSSENCMODE": "require",
    "PGREQUIREAUTH": "gss",
    "PGTARGETSESSIONATTRS": "standby",
    "PGOPTIONS": "-c default_transaction_isolation=serializable -c no.such=setting",
    "PGCLIENTENCODING": "SQL_ASCII",
    "PGMINPROTOCOLVERSION": "3.2",
    "PGMAXPROTOCOLVERSION": "3.2",
    "PGTZ": "Asia/Kathmandu",
    "PGDATESTYLE": "SQL",
}
# libpq connects to nothing while it has these: no URL can overrule them.
BROKEN = {"PGSERVICE": "nowhere", "PGTZ": "nowhere", "PGDATESTYLE": "nowhere", "PGGEQO": "nowhere"}


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    services = tmp_path / "services"
    services.write_text(
        "[another]\nhostaddr=127.0.0.99\nsslmode=verify-full\noptions=-cno.such=1\n"
    )
    for name, value in ELSEWHERE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    monkeypatch.setenv("PGSERVICE", "another")


@pytest.fixture
def served(elsewhere: None, tmp_path: Path) -> Iterator[ServeProcess]:
    """With its own Postgres."""
    arguments = ["--data-dir", str(tmp_path / "data")]
    with ServeProcess(tmp_path / "serve.log", arguments, BROKEN) as process:
        yield process


def test_it_does_not_decide_on_the_service_s_own_postgres_and_its_log(served: ServeProcess) -> None:
    body = {"name": "flights", "partition_count": 2}
    httpx.post(f"{served.url}/v1/queues", json=body).raise_for_status()
    with Publisher("flights", url=served.url) as publisher:
        publisher.publish(b"first")
    (message,) = Consumer("flights", url=served.url, limit=1)
    assert message.value == b"first"
    assert run(["keys", "list", "--url", served.url, *served.arguments]).returncode == 0
    assert served.end() == 0
    assert run(["migrate", *served.arguments]).returncode == 0
