"""What the checker raises."""

from __future__ import annotations


class Violation(Exception):
    """A promise was broken. `promise` is its number; 0: the service failed in itself."""

    def __init__(self, promise: int, text: str) -> None:
        super().__init__(f"promise {promise}: {text}")
        self.promise = promise
        self.text = text
