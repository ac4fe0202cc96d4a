"""The package of consumers and publishers: client, flow, publisher, logs and the Spark source.

    from counterpoise import Client, Flow, Publisher

Each name is loaded when it is first used, so that an executor that only reads a log does not load
an HTTP client.
"""

from typing import TYPE_CHECKING

from counterpoise.lazy import lazily
from counterpoise.version import __version__ as __version__

if TYPE_CHECKING:
    from counterpoise.client import AsyncClient, Client
    from counterpoise.conditions import Condition
    from counterpoise.consumer import Consumer
    from counterpoise.errors import CounterpoiseError
    from counterpoise.flow import AsyncFlow, Flow, Owned, Warming
    from counterpoise.publisher import Publisher
    from counterpoise.wire import Child

__all__ = [
    "AsyncClient",
    "AsyncFlow",
    "Child",
    "Client",
    "Condition",
    "Consumer",
    "CounterpoiseError",
    "Flow",
    "Owned",
    "Publisher",
    "Warming",
]

_WHERE = {
    "AsyncClient": "counterpoise.client",
    "AsyncFlow": "counterpoise.flow",
    "Child": "counterpoise.wire",
    "Client": "counterpoise.client",
    "Condition": "counterpoise.conditions",
    "Consumer": "counterpoise.consumer",
    "CounterpoiseError": "counterpoise.errors",
    "Flow": "counterpoise.flow",
    "Owned": "counterpoise.flow",
    "Publisher": "counterpoise.publisher",
    "Warming": "counterpoise.flow",
}

if not TYPE_CHECKING:  # with __getattr__ visible, mypy would accept every name
    __getattr__ = lazily(__name__, _WHERE)
