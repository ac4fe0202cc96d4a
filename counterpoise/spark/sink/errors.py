"""What ends a query that writes through the fenced sink; each says what to do about it."""

from __future__ import annotations

from counterpoise.errors import CounterpoiseError


class SinkError(CounterpoiseError):
    """The fenced sink cannot go on by itself."""

    code = "sink"


class InvalidSink(SinkError):
    """The sink was made with arguments that it cannot work with."""

    code = "invalid_sink"


class MissingColumns(SinkError):
    """The rows do not carry what the fence goes by: partition and position of their message."""

    code = "missing_columns"


class ForeignRow(SinkError):
    """A row is of no message that this micro-batch has read."""

    code = "foreign_row"


class PlanMissing(SinkError):
    """The source has not said what the micro-batch reads, so nothing may be written."""

    code = "plan_missing"


class SinkNameInUse(SinkError):
    """Two sinks of one name were given the same micro-batch."""

    code = "sink_name_in_use"


class SinkGap(SinkError):
    """Messages before the range that was read have never been written here."""

    code = "sink_gap"


class StaleEpoch(SinkError):
    """The sink has seen a higher epoch of a partition than the one it is held under here.

    And the service, or what the source has heard of it, does not say that the partition was lost.
    """

    code = "stale_epoch"
