"""A misspelt option is answered with the name that was probably meant.

Type checkers find it in the signature, which stays as it is. This is for programs without one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def suggesting(function: Callable[P, T]) -> Callable[P, T]:
    """Raise TypeError for an unknown keyword argument of `function`, with the nearest known one."""
    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def checked(*args: P.args, **given: P.kwargs) -> T:
        for unknown in given.keys() - parameters.keys():
            near = get_close_matches(unknown, parameters, 1)
            hint = f": did you mean {near[0]}?" if near else f"; it has {', '.join(parameters)}"
            raise TypeError(f"{_shown(function, args)} has no argument {unknown}{hint}")
        return function(*args, **given)

    return checked


def _shown(function: Callable[..., object], args: tuple[object, ...]) -> str:
    """A class for its `__init__`: the one that is made, if it inherits it."""
    return type(args[0]).__name__ if function.__name__ == "__init__" else function.__name__
