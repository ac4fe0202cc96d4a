"""A processor for `transformWithState` that keeps state of its own tenure only.

Spark's state store knows keys and nothing of tenures. So each key's state remembers the tenure it
is of, and finds itself empty when a row of another one comes: A → B → A leaves nothing of A's first
tenure in what A puts out in its second (docs, *Warm-up*). This needs the keys to be (partition,
key): a key's rows then have one tenure in each micro-batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

TENURE_STATE = "counterpoise_tenure"


def fresh(state: Any, tenure: int) -> bool:
    """Whether the key's state is of another tenure, or there is none yet: then drop all of it.

    `state` is a value state of the schema `tenure long`, which this sets; `tenure` is the column of
    the row that has come. To be called before anything else is done with the key's state.
    """
    known = state.get()
    if known is not None and known[0] == tenure:
        return False
    state.update((tenure,))
    return True


class TenuredProcessor(StatefulProcessor):
    """For `groupBy("partition", "key").transformWithState(...)`, rows as `pyspark.sql.Row`.

    Rows of a key come in the order of their positions. What `on_rows` yields for history (`replay`)
    is dropped: history builds state and is not put out twice.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._tenure = handle.getValueState(TENURE_STATE, "tenure long")
        self.open(handle)

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        # Sorted after the shuffle by key alone: what spilled may have changed places.
        ordered = sorted(rows, key=lambda row: _order(row["position"]))
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

    # ------------------------------------------------------------------ for the user

    @abstractmethod
    def open(self, handle: StatefulProcessorHandle) -> None:
        """Get the state variables from the handle, as in `StatefulProcessor.init`."""

    @abstractmethod
    def clear(self) -> None:
        """Clear all state variables of the present key, and delete its timers."""

    @abstractmethod
    def on_rows(self, key: Any, rows: list[Row], timers: Any) -> Iterator[Row] | None:
        """Change the state of the key by rows of one tenure, in order; yields what comes out.

        Rows with names (`Row(n=1)`): Spark takes no others from a processor.
        """

    def on_timer(self, key: Any, timers: Any, expired: Any) -> None:
        """Change or drop the state of the key when a timer of its expires.

        Nothing comes out of a timer: it fires wherever there is state of the key, also where the
        partition has gone from, and no sink could tell the two outputs apart.
        """


def _order(position: str) -> tuple[int, str]:
    """Positions are decimal numbers in every log there is; the text decides where one is not."""
    return (int(position), "") if position.isdecimal() else (0, position)
