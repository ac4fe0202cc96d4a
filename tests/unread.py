"""Errors of tasks and futures that nobody has read: asyncio reports them as defects."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def nothing_unread() -> Iterator[None]:
    """Fails if the loop has anything to report of what happens in the block."""
    gc.collect()
    loop, said = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: said.append(context))
    try:
        yield
        gc.collect()
    finally:
        loop.set_exception_handler(None)
    assert said == []
