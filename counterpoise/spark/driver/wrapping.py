"""Methods of PySpark's classes that do something of ours as well, for all sessions of the process.

`register` may be called for many sessions, so each method is wrapped once. Other libraries wrap
them too, before or after; `functools.wraps` takes the mark along.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_MARK = "_counterpoise_wraps"


def wrap_once(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    """Replace a method of a class by `wrap(method)`, unless it was replaced by this before."""
    method = getattr(owner, name)
    if not hasattr(method, _MARK):
        wrapped = wrap(method)
        setattr(wrapped, _MARK, True)
        setattr(owner, name, wrapped)


def check_before(owner: Any, name: str, check: Callable[..., None]) -> None:
    """Let a method of a class call `check` first, with the same arguments."""

    def checking(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
            check(self, *args, **kwargs)
            return method(self, *args, **kwargs)

        return checked

    wrap_once(owner, name, checking)
