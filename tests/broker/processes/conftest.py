"""`crowd_of` makes a crowd of consumers over HTTP on the services of these addresses."""

import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from counterpoise.client import AsyncClient
from tests.broker.crowd import Crowd, HttpDoor

CrowdOf = Callable[[Sequence[str], str, int], Crowd]


@pytest.fixture
async def crowd_of() -> AsyncIterator[CrowdOf]:
    async with contextlib.AsyncExitStack() as stack:

        def make(urls: Sequence[str], queue: str, seed: int) -> Crowd:
            doors = []
            for url in urls:
                client = AsyncClient(url, timeout_seconds=15)
                stack.push_async_callback(client.close)
                doors.append(HttpDoor(client, queue))
            return Crowd(doors, random.Random(seed), lease=15.0)

        yield make
