"""Dead letters of one team, and logs that hang or have holes."""

import asyncio
from typing import Any, cast

import pytest

from broker.calls.letters import LetterCalls
from broker.calls.positions import Done, PositionCalls
from broker.core.errors import Invalid
from broker.logs.peeking import Peek, PeekedMessage
from broker.logs.ports import CALLER
from broker.store.ports import Stored
from broker.testing.loop import virtual
from counterpoise.flow.done_above import DoneAbove


class Hanging:
    """Of the queues `published` and the positions that are asked for, one's log never answers."""

    async def published(self, _to: str, _caller: object) -> None:
        """Every queue takes letters."""

    async def passing(self, name: str, _partition: int, _position: str) -> None:
        if name == "hanging":
            await asyncio.Event().wait()
        raise Invalid("It was asked.")


@virtual
async def test_a_log_that_hangs_keeps_the_letters_of_no_other_caller_waiting() -> None:
    hanging: Any = Hanging()
    letters = LetterCalls(cast(Any, None), cast(Any, None), hanging, hanging)

    async def put_aside(caller: str, name: str) -> None:
        CALLER.set(caller)
        await letters.store(name, 0, "7", "dead", None)

    of_one = [asyncio.create_task(put_aside("one", name)) for name in ("hanging", "orders")]
    async with asyncio.timeout(60):
        with pytest.raises(Invalid, match="It was asked"):
            await asyncio.create_task(put_aside("other", "orders"))
    # A whole message is in memory for each.
    assert not any(call.done() for call in of_one)
    for call in of_one:
        call.cancel()
    await asyncio.gather(*of_one, return_exceptions=True)


class Holes:
    """A log in which 0 to 2 are markers of transactions, as in a topic of Kafka."""

    async def peek(self, _log: str, _partition: int, at: str, limit: int, _bytes: int) -> Peek:
        until = min(int(at) + limit, 5)
        seen = range(max(int(at), 3), until)
        messages = [PeekedMessage(str(one), 0.0, None, None, b"", 0) for one in seen]
        return Peek("0", "5", messages, str(until))


class Unread(PositionCalls):
    async def _done(self, _name: str, _only: int | None = None) -> tuple[str, dict[int, Done]]:
        return "kafka://any/dead", {0: Done(Stored(1, None), DoneAbove(), 0)}


@pytest.mark.parametrize("most", [1, 2, 9])
async def test_letters_behind_a_hole_are_found(most: int) -> None:
    unread = Unread(cast(Any, None), cast(Any, Holes()), cast(Any, None), cast(Any, None))
    _, waiting = await unread.waiting("dead", most)
    assert waiting == [(0, "3"), (0, "4")][:most]
