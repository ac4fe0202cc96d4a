"""What callers are told while the store cannot be reached."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from broker.core.errors import Unavailable
from broker.store.ports import StoreUnavailable

UNAVAILABLE = "The service cannot reach its database right now; try again."


@contextmanager
def store_available() -> Iterator[None]:
    """For calls of the store: raises Unavailable if the store cannot be reached."""
    try:
        yield
    except StoreUnavailable:
        raise Unavailable(UNAVAILABLE) from None
