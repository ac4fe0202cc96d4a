"""Errors that end a query: each says what is wrong and what to do about it.

Only `Unforeseen` is transient. An unavailable service or log shows in the query's progress and in
the application's log, and the query continues as soon as it is back. The errors of the fenced sink
(`SinkError`) stand at the end.
"""

from __future__ import annotations

from counterpoise.errors import CounterpoiseError

# What FlowEnded says after a drain from outside. Spark passes on its text, not its type.
DRAINED_FROM_OUTSIDE = (
    "an administrator has drained this consumer, and everything is handed over. Start the query "
    "again to come back"
)


class SourceError(CounterpoiseError):
    """The source cannot continue by itself."""

    code = "source"


class InvalidOption(SourceError):
    """An option is unknown, missing or has an invalid value."""

    code = "invalid_option"


class InvalidSchema(SourceError):
    """The user gave a schema that is not the source's own."""

    code = "invalid_schema"


class InvalidOffset(SourceError):
    """The checkpoint belongs to another source, queue or log, or to another version."""

    code = "invalid_offset"


class Unsupported(SourceError):
    """The query runs in a mode of Spark in which the source cannot keep its promises."""

    code = "unsupported"


class StateLost(SourceError):
    """The query keeps state in Spark that a handoff of the queue's partitions would lose."""

    code = "state_lost"


class CannotStart(SourceError):
    """The query could not bind its flow or reach the log within its start timeout."""

    code = "cannot_start"


class Unfinished(SourceError):
    """A query with Trigger.AvailableNow could not determine whether it has read everything."""

    code = "unfinished"


class FlowEnded(SourceError):
    """The flow has ended for good: replaced, unbound by an administrator, or its queue deleted."""

    code = "flow_ended"


class Trimmed(SourceError):
    """Messages of a micro-batch were trimmed: a later owner has read them, or nobody has."""

    code = "trimmed"


class Unforeseen(SourceError):
    """An unforeseen failure: a defect of the source. The call is tried again."""

    code = "unforeseen"


class AheadOfLog(SourceError):
    """The position to continue from lies beyond the end of the log."""

    code = "ahead_of_log"


class InvalidRows(SourceError):
    """The rows of a write are not what a queue takes, or cannot be told apart when repeated."""

    code = "invalid_rows"


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
    """Two sinks of one name, or one sink twice, got the same micro-batch."""

    code = "sink_name_in_use"


class SinkGap(SinkError):
    """Messages before the range that was read were never written here."""

    code = "sink_gap"


class Overtaken(SinkError):
    """Another commit changed the table of a lake since it was read, and nothing was committed."""

    code = "overtaken"


class StaleEpoch(SinkError):
    """The sink has seen a higher epoch of a partition than the one it is held under here.

    Neither the service nor the source's last view says that the partition was lost.
    """

    code = "stale_epoch"
