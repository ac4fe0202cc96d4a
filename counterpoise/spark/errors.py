"""What ends a query: each says what is wrong and what to do about it.

Nothing transient is here but `Unforeseen`. A service or a log that is away shows in the query's
progress and in the log of the application, and the query goes on as soon as it is back.
"""

from counterpoise.errors import CounterpoiseError


class SourceError(CounterpoiseError):
    """The source cannot go on by itself."""

    code = "source"


class InvalidOption(SourceError):
    """An option is unknown, missing or has a value it cannot have."""

    code = "invalid_option"


class InvalidSchema(SourceError):
    """The user gave a schema, and it is not the source's own."""

    code = "invalid_schema"


class InvalidOffset(SourceError):
    """The checkpoint does not fit: of another source, queue or log, or of another version."""

    code = "invalid_offset"


class Unsupported(SourceError):
    """The query runs in a way of Spark's in which the source cannot keep its promises."""

    code = "unsupported"


class CannotStart(SourceError):
    """The query could not bind its flow or reach the log in the time it has for that."""

    code = "cannot_start"


class Unfinished(SourceError):
    """A query with Trigger.AvailableNow could not find out whether it has read everything."""

    code = "unfinished"


class FlowEnded(SourceError):
    """The flow is over for good: replaced, unbound by an administrator, or its queue is no more."""

    code = "flow_ended"


class Trimmed(SourceError):
    """What a micro-batch was to read has been trimmed: read by a later owner, or gone unread."""

    code = "trimmed"


class Unforeseen(SourceError):
    """Something failed in a way that the source does not know: a defect. It is tried again."""

    code = "unforeseen"


class AheadOfLog(SourceError):
    """The position to go on from lies beyond the end of the log."""

    code = "ahead_of_log"
