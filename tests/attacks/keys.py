"""What the attacks with keys share."""

from __future__ import annotations

import time
from collections.abc import Callable

from broker import keys
from broker.core.access import key_id_of
from tests.api.access import Guarded
from tests.service import eventually

# The contract, *Who may call what*.
END_SECONDS = 5.0


def revoke(secured: Guarded, key: str) -> float:
    """Revoke a key. Returns the monotonic time at which it must have ended everywhere."""
    id = key_id_of(key)
    assert id is not None
    keys.revoke(secured.url, id)
    return time.monotonic() + END_SECONDS


def within(deadline: float, condition: Callable[[], object]) -> None:
    eventually(condition, deadline - time.monotonic())
