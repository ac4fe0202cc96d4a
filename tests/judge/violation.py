"""The kinds of violations."""

from __future__ import annotations

# Kinds, with the names that tables show.
LOST = "lost"
OWNERS = "double ownership"
STALE = "stale"
ORDER = "out of order"
DUPLICATE = "duplicate"
FORGOTTEN = "forgotten"
FAILED = "failed"
KINDS = (LOST, OWNERS, STALE, ORDER, DUPLICATE, FORGOTTEN, FAILED)


class Violation(Exception):
    """A broken promise. `promise` is its number; 0: a consumer or a publisher failed."""

    def __init__(self, promise: int, text: str, kind: str = "") -> None:
        super().__init__(f"promise {promise}: {text}")
        self.promise = promise
        self.text = text
        self.kind = kind
