"""Logs of one team that never answer, and the calls of others."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx
import pytest

from broker.logs.external import PER_CALLER, PER_LOG, ExternalLogs
from broker.logs.ports import LogOwner
from counterpoise.logs import LogUnavailable
from tests.api.access import Guarded, bearer
from tests.attacks.listening import listening
from tests.redis_server import RedisServer, redis_server
from tests.unread import nothing_unread

pytestmark = pytest.mark.long

__all__ = ["redis_server"]

CALLS = 40
# Only a test that fails waits so long.
WAITS_SECONDS = 60.0


def created(secured: Guarded, key: str, queue: str, log: str) -> httpx.Response:
    body: dict[str, Any] = {"name": queue, "partition_count": 1, "log": log}
    with secured.http as http:
        return http.post("/v1/queues", json=body, headers=bearer(key), timeout=2 * WAITS_SECONDS)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call on a log that hangs is under way until the log is gone."""
    monkeypatch.setattr("broker.logs.external.CALL_SECONDS", 600.0)


def test_logs_that_hang_hurt_one_team_alone(secured: Guarded, redis_server: RedisServer) -> None:
    with ThreadPoolExecutor(CALLS + 2) as threads, listening() as hanging:
        calls = [
            threads.submit(
                created,
                secured,
                secured.keys["admin"],
                f"team-a.hanging-{n}",
                f"redis://127.0.0.1:{hanging.port}/0/team-a.hanging-{n}",
            )
            for n in range(CALLS)
        ]
        for _ in range(PER_CALLER):
            assert hanging.called.acquire(timeout=WAITS_SECONDS)
        log = redis_server.log("team-b.orders")
        made = threads.submit(created, secured, secured.root, "team-b.orders", log)
        assert made.result(WAITS_SECONDS).status_code == 201
        with secured.http as http:
            shown = http.get("/v1/queues/team-b.orders/partitions", headers=bearer(secured.root))
        assert [one["end"] for one in shown.json()["items"]] == ["0"]
        assert not any(call.done() for call in calls)
        assert not hanging.called.acquire(blocking=False)
    assert {call.result().status_code for call in calls} == {422}


async def test_a_log_that_hangs_hurts_itself_alone(redis_server: RedisServer) -> None:
    logs = ExternalLogs()
    with listening() as hanging:
        log = f"redis://127.0.0.1:{hanging.port}/0/hanging"
        calls = [asyncio.create_task(logs.partition_count(log)) for _ in range(CALLS)]
        for _ in range(PER_LOG):
            assert await asyncio.to_thread(hanging.called.acquire, timeout=WAITS_SECONDS)
        other = redis_server.log("of-the-same-team")
        async with asyncio.timeout(WAITS_SECONDS):
            await logs.ensure(other, 3, LogOwner("id", "of-the-same-team", 1.0))
            assert await logs.partition_count(other) == 3
        assert not any(call.done() for call in calls)
        assert not hanging.called.acquire(blocking=False)
    with closing(logs):
        failed = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(one) for one in failed} == {LogUnavailable}
    assert all("the service's own log has the reason" in str(one) for one in failed)


async def test_what_a_log_says_after_its_caller_has_given_up_is_no_defect() -> None:
    with closing(ExternalLogs()) as logs, nothing_unread():
        with listening() as hanging:
            log = f"redis://127.0.0.1:{hanging.port}/0/hanging"
            with pytest.raises(LogUnavailable):
                await logs.bounds(log, [0], seconds=0.05)
            assert await asyncio.to_thread(hanging.called.acquire, timeout=WAITS_SECONDS)
        await asyncio.to_thread(logs._threads.shutdown)
        await asyncio.sleep(0)


async def test_who_gives_up_before_its_thread_began_leaves_its_place(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.logs.external._THREADS", 1)
    logs = ExternalLogs()
    owner = LogOwner("id", "given-up", 1.0)
    log = redis_server.log("given-up")
    with closing(logs):
        with listening() as hanging:
            away = f"redis://127.0.0.1:{hanging.port}/0/hanging"
            first = asyncio.create_task(logs.partition_count(away))
            assert await asyncio.to_thread(hanging.called.acquire, timeout=WAITS_SECONDS)
            calls = [asyncio.create_task(logs.ensure(log, 1, owner)) for _ in range(PER_LOG)]
            await asyncio.sleep(0)
            assert logs._threads._work_queue.qsize() == PER_LOG
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.gather(first, return_exceptions=True)
        async with asyncio.timeout(WAITS_SECONDS):
            await logs.ensure(log, 1, owner)
