"""Services within this process: `counterpoise.testing` registers them by address.

A client of such an address sends its requests through the service's own transport, and no socket is
opened.
"""

from __future__ import annotations

from typing import Protocol

import httpx


class Within(Protocol):
    """A service that is reached without a network."""

    def transport(self) -> httpx.BaseTransport:
        """A transport for one client."""
        ...

    def async_transport(self) -> httpx.AsyncBaseTransport:
        """A transport for one asyncio client."""
        ...


SERVICES: dict[str, Within] = {}
"""By address, without a path."""


def found(url: str) -> Within | None:
    """The service at a root of paths (`http://…/v1`), if it is within this process."""
    return SERVICES.get(url.removesuffix("/v1"))


def transport(url: str) -> httpx.BaseTransport | None:
    """For a blocking client of this root; None: the network."""
    service = found(url)
    return None if service is None else service.transport()


def async_transport(url: str) -> httpx.AsyncBaseTransport | None:
    """For an asyncio client of this root; None: the network."""
    service = found(url)
    return None if service is None else service.async_transport()
