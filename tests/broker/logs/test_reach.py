"""Positions far beyond the end of a log are found, and the log is asked seldom."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

from broker.core.commands import CommitItem
from broker.logs.ports import Logs, Positions, Span
from broker.logs.positions import FAR, SILENT_SECONDS, Reach
from broker.testing.loop import virtual

LOG = "builtin:q"


class Told:
    """A log with these ends; without any it does not answer."""

    def __init__(self, ends: dict[int, int]) -> None:
        self.ends = ends
        self.asked = 0

    async def spans(self, log: str, positions: Positions) -> Mapping[int, Span]:
        assert log == LOG
        self.asked += 1
        return {
            number: Span("0", str(self.ends[number]), None)
            for number in positions
            if number in self.ends
        }


async def refused(reach: Reach, position: int) -> Mapping[int, str]:
    """As a commit of partition 0 does it."""
    if not reach.is_doubtful("q", CommitItem(0, 1, str(position))):
        return {}
    return await reach.beyond("q", LOG, {0: str(position)})


async def test_what_nobody_can_have_read_is_refused() -> None:
    log = Told({0: 7})
    reach = Reach(cast(Logs, log))
    assert await refused(reach, 7) == {}
    assert await refused(reach, 7 + FAR) == {}
    assert await refused(reach, 8 + FAR) == {0: "7"}
    assert await refused(reach, 10**18) == {0: "7"}


async def test_a_log_that_grows_is_asked_once_in_many_messages() -> None:
    log = Told({0: 0})
    reach = Reach(cast(Logs, log))
    for position in range(0, 10 * FAR, FAR // 100):
        log.ends[0] = position
        assert await refused(reach, position) == {}
    assert log.asked < 10


async def test_texts_that_are_no_numbers_are_for_others_to_judge() -> None:
    log = Told({})
    reach = Reach(cast(Logs, log))
    for position in ("abc", "-5", "9" * 20, "\u0669" * 9, ""):
        assert reach.is_near("q", 0, position)


@virtual
async def test_a_log_that_does_not_answer_refuses_nothing_and_is_left_alone() -> None:
    log = Told({})
    reach = Reach(cast(Logs, log))
    for _ in range(5):
        assert await refused(reach, 10 * FAR) == {}
    assert log.asked == 1
    await asyncio.sleep(SILENT_SECONDS)
    log.ends[0] = 7
    assert await refused(reach, 10 * FAR) == {0: "7"}


async def test_queues_that_are_gone_take_bounded_memory() -> None:
    log = Told({0: 7})
    reach = Reach(cast(Logs, log))
    for number in range(2000):
        await reach.beyond(f"q{number}", LOG, {0: str(10 * FAR)})
    assert len(reach._known) == 1000
