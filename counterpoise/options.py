"""Slips of programs that a type checker would find, for programs without one.

A misspelt option is answered with the name that was probably meant; the signature stays as it is. A
function that should have worked and has only made a coroutine or a generator is an error.
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


def has_run(result: object) -> None:
    """Raise TypeError if the result of a program's function shows that its code has not run."""
    if result is None:
        return
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(
            f"a function of the program returned a {type(result).__name__} instead of doing its "
            "work: give a plain function (no async def, no yield); for asyncio there is AsyncFlow"
        )


def _shown(function: Callable[..., object], args: tuple[object, ...]) -> str:
    """A class for its `__init__`: the one that is made, if it inherits it."""
    return type(args[0]).__name__ if function.__name__ == "__init__" else function.__name__
