"""Slips of programs that a type checker would find, for programs without one.

A misspelt option is answered with the name that was probably meant; the signature stays as it is. A
function that should have worked and has only made a coroutine or a generator is an error. Numbers
without sense are refused before anything happens: TypeError for what is no number, ValueError for a
number that is not allowed.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# Three decades. The clocks of operating systems take no time limit without an end.
LONGEST_SECONDS = 1e9
# The shortest time limit: with none at all nothing can succeed.
SHORTEST_SECONDS = 0.001


def suggesting(function: Callable[P, T]) -> Callable[P, T]:
    """Raise TypeError for an unknown keyword argument of `function`, with the nearest known one."""
    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def checked(*args: P.args, **given: P.kwargs) -> T:
        for unknown in given.keys() - parameters.keys():
            from difflib import get_close_matches

            near = get_close_matches(unknown, parameters, 1)
            hint = f": did you mean {near[0]}?" if near else f"; it has {', '.join(parameters)}"
            raise TypeError(f"{_shown(function, args)} has no argument {unknown}{hint}")
        return function(*args, **given)

    return checked


def has_run(result: object) -> None:
    """Raise TypeError if the result of a program's function shows that its code has not run."""
    if result is None:
        return
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(
            f"a function of the program returned a {type(result).__name__} instead of doing its "
            "work: give a plain function (no async def, no yield); for asyncio there are "
            "AsyncConsumer and AsyncFlow"
        )


def check_counts(least: int = 1, /, **given: object) -> None:
    """Raise TypeError or ValueError unless these, by name, are whole numbers from `least` on."""
    for name, number in given.items():
        if isinstance(number, bool) or not isinstance(number, Integral):
            raise TypeError(f"{name} must be a whole number, not {number!r}")
        if number < least:
            raise ValueError(f"{name} must be at least {least}, not {number}")


def check_seconds(least: float = 0.0, most: float = LONGEST_SECONDS, /, **given: object) -> None:
    """Raise TypeError or ValueError unless these, by name, are seconds from `least` to `most`."""
    for name, seconds in given.items():
        if isinstance(seconds, bool) or not isinstance(seconds, Real):
            raise TypeError(f"{name} must be a number of seconds, not {seconds!r}")
        if not least <= float(seconds) <= most:
            raise ValueError(f"{name} must be from {least:g} to {most:,.0f} seconds, not {seconds}")


def check_time_left(**given: object) -> None:
    """As `check_seconds`, of the time that a caller still has: None, or negative if it has none."""
    for name, seconds in given.items():
        if seconds is not None:
            check_seconds(-math.inf, math.inf, **{name: seconds})


def _shown(function: Callable[..., object], args: tuple[object, ...]) -> str:
    """A class for its `__init__`: the one that is made, if it inherits it."""
    return type(args[0]).__name__ if function.__name__ == "__init__" else function.__name__
