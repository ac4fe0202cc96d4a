"""How promises are broken."""

from __future__ import annotations

# Kinds, as tables show them.
LOST = "lost"
OWNERS = "double ownership"
STALE = "stale"
ORDER = "out of order"
DUPLICATE = "duplicate"
FORGOTTEN = "forgotten"
FAILED = "failed"
KINDS = (LOST, OWNERS, STALE, ORDER, DUPLICATE, FORGOTTEN, FAILED)


class Violation(Exception):
    """A promise was broken. `promise` is its number; 0: somebody failed in himself."""

    def __init__(self, promise: int, text: str, kind: str = "") -> None:
        super().__init__(f"promise {promise}: {text}")
        self.promise = promise
        self.text = text
        self.kind = kind
