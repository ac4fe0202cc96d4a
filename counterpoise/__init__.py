"""The package of consumers and publishers: client, flow, publisher, logs and the Spark source.

    from counterpoise import Client, Consumer, Publisher

Each name is loaded when it is first used, so that an executor that only reads a log does not load
an HTTP client.
"""

from typing import TYPE_CHECKING

from counterpoise.lazy import lazily
from counterpoise.version import __version__ as __version__

if TYPE_CHECKING:
    from counterpoise.client import AsyncClient, Client
    from counterpoise.consumer import (
        AsyncConsumer,
        Consumer,
        DeadLetter,
        Message,
        Retry,
        stop_on_signals,
    )
    from counterpoise.errors import CounterpoiseError
    from counterpoise.flow import AsyncFlow, Flow, Owned, Warming
    from counterpoise.publisher import Publisher
    from counterpoise.wire import Child, Condition

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncFlow",
    "Child",
    "Client",
    "Condition",
    "Consumer",
    "CounterpoiseError",
    "DeadLetter",
    "Flow",
    "Message",
    "Owned",
    "Publisher",
    "Retry",
    "Warming",
    "stop_on_signals",
]

_WHERE = {
    "AsyncClient": "counterpoise.client",
    "AsyncConsumer": "counterpoise.consumer",
    "AsyncFlow": "counterpoise.flow",
    "Child": "counterpoise.wire",
    "Client": "counterpoise.client",
    "Condition": "counterpoise.wire",
    "Consumer": "counterpoise.consumer",
    "CounterpoiseError": "counterpoise.errors",
    "DeadLetter": "counterpoise.consumer",
    "Flow": "counterpoise.flow",
    "Message": "counterpoise.consumer",
    "Owned": "counterpoise.flow",
    "Publisher": "counterpoise.publisher",
    "Retry": "counterpoise.consumer",
    "Warming": "counterpoise.flow",
    "stop_on_signals": "counterpoise.consumer",
}

if not TYPE_CHECKING:  # with __getattr__ visible, mypy would accept every name
    __getattr__ = lazily(__name__, _WHERE)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
