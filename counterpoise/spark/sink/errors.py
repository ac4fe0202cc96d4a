"""Errors that end a query with the fenced sink; each says what to do about it."""

from __future__ import annotations

from counterpoise.errors import CounterpoiseError


class SinkError(CounterpoiseError):
    """The fenced sink cannot continue by itself."""

    code = "sink"


class InvalidSink(SinkError):
    """The sink was created with arguments that do not work."""

    code = "invalid_sink"


class MissingColumns(SinkError):
    """The rows lack the columns that the fence needs: partition and position of their message."""

    code = "missing_columns"


class ForeignRow(SinkError):
    """A row belongs to no message that this micro-batch has read."""

    code = "foreign_row"


class PlanMissing(SinkError):
    """The source has not told the sink what the micro-batch reads, so nothing may be written."""

    code = "plan_missing"


class SinkNameInUse(SinkError):
    """Two sinks of one name got the same micro-batch."""

    code = "sink_name_in_use"


class SinkGap(SinkError):
    """Messages before the range that was read were never written here."""

    code = "sink_gap"


class StaleEpoch(SinkError):
    """The sink has seen a higher epoch of a partition than the one it is held under here.

    Neither the service nor the source's last view says that the partition was lost.
    """

    code = "stale_epoch"
