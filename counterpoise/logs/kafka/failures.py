"""Reports of librdkafka as exceptions of a log; and a limit on its log lines.

librdkafka tries again by itself and reports errors in events. Most of them are temporary, so they
are only stored (`Trouble`), to give the reason when a call runs out of time.

Its log lines, one or more for each attempt to connect, go to the logger `counterpoise.librdkafka`,
which is silent unless a level is set on it: the exceptions carry the important information.
"""

from __future__ import annotations

import logging

from confluent_kafka import KafkaError, KafkaException

from counterpoise.logs.errors import (
    InvalidMessage,
    LogAccessRefused,
    LogError,
    LogNotFound,
    LogUnavailable,
)
from counterpoise.logs.kafka.access import Access

librdkafka_logger = logging.getLogger("counterpoise.librdkafka")
if librdkafka_logger.level == logging.NOTSET:
    librdkafka_logger.setLevel(logging.CRITICAL + 1)

_REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_MISSING = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_EXCEPTION,
    }
)
_NOT_TO_BE_HELD = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.RECORD_LIST_TOO_LARGE,
    }
)
# No connection, or one that was cut.
_AWAY = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE})
# librdkafka requires a group; nothing here uses its offsets.
_NO_MATTER = frozenset({KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._MAX_POLL_EXCEEDED})


class Trouble:
    """The last errors of one log's clients. Written by librdkafka's callbacks."""

    def __init__(self, access: Access, topic: str) -> None:
        self._access = access
        self._topic = topic
        self._last: KafkaError | None = None

    def note(self, error: KafkaError) -> None:
        """Store an event; "all brokers are down" does not replace a more precise one."""
        if error.code() in _NO_MATTER:
            return
        if error.code() == KafkaError._ALL_BROKERS_DOWN and self._last is not None:
            return
        if self._last is None or self._last.code() not in _REFUSED:
            self._last = error

    def clear(self) -> None:
        """A call succeeded."""
        self._last = None

    def refused(self) -> bool:
        """Whether the cluster did not accept the credentials."""
        return self._last is not None and self._last.code() in _REFUSED

    def too_late(self, what: str) -> LogError:
        """The exception for a call that ran out of time while it did `what`."""
        if self._last is None:
            return LogUnavailable(f"Kafka was too slow: {what} exceeded its time limit")
        if self.refused():
            return self.told(self._last)
        return LogUnavailable(f"Kafka cannot be reached for {what}: {self._text(self._last)}")

    def told(self, error: KafkaError) -> LogError:
        """The exception for an error answer of the cluster."""
        text = self._text(error)
        if error.code() in _REFUSED:
            return LogAccessRefused(f"Kafka refuses the access to topic {self._topic!r}: {text}")
        if error.code() in _MISSING:
            return LogNotFound(
                f"Kafka has no topic {self._topic!r}, or not this partition of it: {text}"
            )
        if error.code() in _NOT_TO_BE_HELD:
            return InvalidMessage(f"topic {self._topic!r} refuses a message: {text}")
        if self.refused():
            assert self._last is not None
            return self.told(self._last)
        if error.code() == KafkaError._TIMED_OUT and self._last is not None:
            return self.too_late("an answer")
        if error.code() in _AWAY:
            return LogUnavailable(f"Kafka cannot be reached: {text}")
        return LogUnavailable(f"Kafka: {text}")

    def invalid(self, error: KafkaException) -> LogError:
        """The exception for a client that could not be made."""
        return LogError(f"the access to Kafka is not valid: {self._text(error.args[0])}")

    def _text(self, error: KafkaError) -> str:
        return self._access.scrub(f"{error.str()} [{error.name()}]")


def is_passing(error: KafkaError) -> bool:
    """Whether librdkafka continues a read by itself after this event."""
    return error.code() not in _REFUSED and error.code() not in _MISSING
