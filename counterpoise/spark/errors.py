"""Errors that end a query: each says what is wrong and what to do about it.

There is one class for each thing that a caller does next; the rest is in the message. An
unavailable service or log ends no query: it shows in the query's progress and in the application's
log, and the query continues as soon as it is back. The errors of writing (`SinkError`) stand at the
end.
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
    """An option, a schema or a column is unknown, missing or not what it must be."""

    code = "invalid_option"


class InvalidOffset(SourceError):
    """The checkpoint or the position to go on from is of another source, queue, log or version."""

    code = "invalid_offset"


class Unsupported(SourceError):
    """The query or the call runs where promises cannot be kept: a mode, a session, a thread."""

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


class SinkError(CounterpoiseError):
    """A sink or a write cannot continue by itself."""

    code = "sink"


class InvalidSink(SinkError):
    """The sink has arguments that do not work, or a name that another sink has."""

    code = "invalid_sink"


class InvalidRows(SinkError):
    """The rows lack a column, have a wrong one, or are not those of the messages that were read."""

    code = "invalid_rows"


class SinkGap(SinkError):
    """Messages before the range that was read were never written here."""

    code = "sink_gap"


class Overtaken(SinkError):
    """Another commit changed the table of a lake since it was read, and nothing was committed."""

    code = "overtaken"
