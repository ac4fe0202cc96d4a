"""Methods of PySpark that do something of ours as well, also where others have wrapped them."""

from __future__ import annotations

import functools
from collections.abc import Callable

from counterpoise.spark.driver.wrapping import check_before


def traced(method: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(method)
    def call(*args: object) -> str:
        return method(*args)

    return call


def test_a_method_is_wrapped_once_whoever_wraps_it_too() -> None:
    class Writer:
        def start(self) -> str:
            return "started"

    asked: list[Writer] = []
    writer = Writer()
    for _ in range(2):
        Writer.start = traced(Writer.start)  # type: ignore[method-assign]
        check_before(Writer, "start", asked.append)
        assert writer.start() == "started"
    assert asked == [writer, writer]
