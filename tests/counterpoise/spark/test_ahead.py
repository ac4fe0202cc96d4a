"""A task reads the log ahead of Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from counterpoise.spark.source.tasks import ahead

Pause = Callable[[float], None]


def test_the_next_item_is_found_while_the_first_is_used() -> None:
    found = threading.Event()

    def read(pause: Pause) -> Iterator[str]:
        yield "a"
        found.set()
        yield "b"

    items = ahead(read)
    assert next(items) == "a"
    assert found.wait(240)
    assert list(items) == ["b"]


def test_it_reads_two_items_ahead_and_no_further() -> None:
    asked = threading.Semaphore(0)
    taken: list[int] = []

    def read(pause: Pause) -> Iterator[int]:
        for number in range(10):
            asked.release()
            taken.append(number)
            yield number

    items = ahead(read)
    assert next(items) == 0
    # One is kept, and one waits to be kept.
    assert all(asked.acquire(timeout=240) for _ in range(3))
    assert len(taken) == 3
    assert list(items) == list(range(1, 10))


def test_an_error_comes_after_the_items_before_it() -> None:
    def read(pause: Pause) -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("lost")

    items = ahead(read)
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(ValueError, match="lost"):
        next(items)


def test_closing_ends_the_thread_wherever_it_is() -> None:
    ended = threading.Event()

    def endless(pause: Pause) -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            ended.set()

    def waiting(pause: Pause) -> Iterator[int]:
        try:
            yield 1
            pause(3600.0)
            yield 2
        finally:
            ended.set()

    for read in (endless, waiting):
        ended.clear()
        items = ahead(read)
        assert next(items) == 1
        items.close()  # type: ignore[attr-defined]
        # It has ended before close returns, so the next task has the log for itself.
        assert ended.is_set()


def test_nothing_to_read() -> None:
    assert list(ahead(lambda pause: iter(()))) == []
