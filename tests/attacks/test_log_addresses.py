"""An administrator of one team who has the service connect to addresses, to see who is there."""

from __future__ import annotations

import httpx
import pytest
import structlog

from tests.api.access import Guarded, bearer
from tests.attacks.listening import listening

pytestmark = pytest.mark.long

BANNER = b"SSH-2.0-secret\r\n"


def refused(secured: Guarded, log: str) -> tuple[int, str]:
    """Status and text of the refusal, without the address."""
    body = {"name": "team-a.spy", "partition_count": 1, "log": f"{log}/team-a.spy"}
    if log.startswith("kafka"):
        del body["partition_count"]
    with secured.http as http:
        answer: httpx.Response = http.post(
            "/v1/queues", json=body, headers=bearer(secured.keys["admin"])
        )
    return answer.status_code, answer.text.replace(log, "")


@pytest.mark.parametrize("kind", ["redis://{}/0", "kafka://{}"])
def test_only_the_service_s_own_machine_is_connected_to(secured: Guarded, kind: str) -> None:
    answers = {
        refused(secured, kind.format(address))
        for address in (
            "192.0.2.1:6379",
            "no.such.name.invalid",
            "localhost.example.com",
            "0.0.0.0:22",
            "[::]:22",
            "[::ffff:192.0.2.1]:22",
            "127.1:22",
            "2130706433:22",
        )
    }
    ((status, text),) = answers
    assert status == 422
    assert "COUNTERPOISE_LOG_URLS" in text
    if kind.startswith("kafka"):
        assert refused(secured, "kafka://127.0.0.1:1,192.0.2.1:1") == (status, text)


@pytest.mark.matrix("kind")
@pytest.mark.parametrize("kind", ["redis://127.0.0.1:{}/0", "kafka://127.0.0.1:{}"])
def test_all_that_goes_wrong_there_has_one_answer(
    secured: Guarded, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.logs.external.CALL_SECONDS", 0.5)
    with (
        listening() as silent,
        listening(BANNER) as talking,
        listening(b"-NOAUTH secret\r\n") as locked,
        listening(b"$5\r\nsecret\r\n") as strange,
        structlog.testing.capture_logs() as logged,
    ):
        answers = [
            refused(secured, kind.format(port))
            for port in (1, silent.port, talking.port, locked.port, strange.port)
        ]
    assert len(set(answers)) == 1
    status, text = answers[0]
    assert status == 422
    assert "secret" not in text
    said = [line["error"] for line in logged if line["event"] == "a log cannot be reached"]
    assert len(said) == 5
    assert len(set(said)) > 1
