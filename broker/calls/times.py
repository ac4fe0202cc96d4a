"""Times as the API writes them; inside the service they are Unix seconds."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, overload

FIRST = datetime.min.replace(tzinfo=UTC)
LAST = datetime.max.replace(tzinfo=UTC)
# How a time is called in what is stored as JSON: events and the audit.
_TIME_NAME = re.compile("deadline|due|began|since|(.+_)?(at|until)")


@overload
def time_of(unix_seconds: float) -> datetime: ...
@overload
def time_of(unix_seconds: None) -> None: ...
@overload
def time_of(unix_seconds: float | None) -> datetime | None: ...
def time_of(unix_seconds: float | None) -> datetime | None:
    """The time, in UTC. A year has four digits there: a time before the first or after the last one
    becomes the nearest of them.
    """
    if unix_seconds is None:
        return None
    try:
        return datetime.fromtimestamp(unix_seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return LAST if unix_seconds > 0 else FIRST


def with_times(value: Any, name: str = "") -> Any:
    """A stored value called `name` as it is shown: its times, which are Unix seconds, as times."""
    match value:
        case Mapping():
            return {str(key): with_times(inner, str(key)) for key, inner in value.items()}
        case float() if _TIME_NAME.fullmatch(name):
            return time_of(value)
        case Sequence() if not isinstance(value, str):
            return [with_times(inner) for inner in value]
    return value
