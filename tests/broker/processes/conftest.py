"""`crowd_of` makes a crowd of consumers over HTTP on the services of these addresses."""

import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from counterpoise.client import AsyncClient
from tests.broker.crowd import Crowd

CrowdOf = Callable[[Sequence[str], str, int], Crowd]


@pytest.fixture
async def crowd_of() -> AsyncIterator[CrowdOf]:
    async with contextlib.AsyncExitStack() as stack:

        def make(urls: Sequence[str], queue: str, seed: int) -> Crowd:
            clients = [AsyncClient(url, timeout_seconds=15) for url in urls]
            for client in clients:
                stack.push_async_callback(client.close)
            return Crowd(clients, queue, random.Random(seed), lease=15.0)

        yield make
