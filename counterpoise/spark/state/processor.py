"""A processor for `transformWithState` whose state belongs to one tenure.

Spark's state store knows keys but not tenures. So each key's state stores its tenure, and is
dropped when a row of another tenure comes. After A → B → A nothing of A's first tenure affects what
A emits in its second (docs, *Warm-up*). For this the keys must be (partition, key): then a key's
rows have one tenure in each micro-batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from counterpoise.spark.version import require_4_1

TENURE_STATE = "counterpoise_tenure"


def fresh(state: Any, tenure: int) -> bool:
    """Whether the key has no state of this tenure. A state of another tenure is dropped.

    `state` is a value state of the schema `tenure long`, which this sets; `tenure` is the row's
    column. Call this before anything else that uses the key's state.
    """
    known = state.get()
    if known is not None and known[0] == tenure:
        return False
    state.update((tenure,))
    return True


class TenuredProcessor(StatefulProcessor):
    """For `groupBy("partition", "key").transformWithState(...)`, rows as `pyspark.sql.Row`.

    Rows of a key come in the order of their positions. The output of `on_rows` for history
    (`replay`) is dropped: it was emitted before.

    `tenured`: state of another tenure is dropped, so the query may start on a shared queue. A
    processor of your own that uses `fresh` sets it too.
    """

    tenured = True

    def __init_subclass__(cls, **given: Any) -> None:
        """Raises Unsupported on PySpark 4.0, also for the ready processors."""
        require_4_1(
            "TenuredProcessor and counterpoise.spark.processors need",
            "keep the state in the sink, with FencedAggregate, Deduplicate or StatefulForeachBatch",
        )
        super().__init_subclass__(**given)

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._tenure = handle.getValueState(TENURE_STATE, "tenure long")
        self.open(handle)

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        ordered = in_order(rows)
        if fresh(self._tenure, ordered[0]["tenure"]):
            self.clear()
        out = self.on_rows(key, ordered, timerValues)
        if not ordered[0]["replay"]:
            yield from out or ()
            return
        for _ in out or ():
            pass

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Row]:
        self.on_timer(key, timerValues, expiredTimerInfo)
        return iter(())

    # ------------------------------------------------------------------ overridden by users

    @abstractmethod
    def open(self, handle: StatefulProcessorHandle) -> None:
        """Get the state variables from the handle, as in `StatefulProcessor.init`."""

    @abstractmethod
    def clear(self) -> None:
        """Clear all state variables of the current key, and delete its timers."""

    @abstractmethod
    def on_rows(self, key: Any, rows: list[Row], timers: Any) -> Iterator[Row] | None:
        """Change the state of the key by rows of one tenure, in order; yields the output.

        Output rows need names (`Row(n=1)`): Spark takes no others from a processor.
        """

    def on_timer(self, key: Any, timers: Any, expired: Any) -> None:
        """Change or drop the state of the key when one of its timers expires.

        A timer has no output: it fires wherever the key has state, also on a former owner of the
        partition.
        """


def in_order(rows: Iterable[Any]) -> list[Any]:
    """Rows of one partition by their positions.

    The shuffle sorts by key alone, and spilling may have changed the order of rows.
    """
    return sorted(rows, key=lambda row: _order(row["position"]))


def _order(position: str) -> tuple[int, str]:
    """Positions are decimal numbers in every existing log; otherwise they are ordered as text."""
    return (int(position), "") if position.isdecimal() else (0, position)
