"""The access to a Kafka cluster: from URLs to librdkafka's properties, and its reports as errors.

    kafka://user:password@host:port,host:port/TOPIC?security.protocol=SASL_SSL&sasl.mechanisms=PLAIN

The query string takes properties of librdkafka by their own names, but only those of `PROPERTIES`:
settings for order, loss and memory do not belong to the access. A user without
`security.protocol` means SASL_SSL, because a password must not travel in clear text unless this is
configured; without `sasl.mechanisms` it means PLAIN. An access is never shown: `Access` has no
repr of its content, and `scrub` removes its secrets from any text, also from librdkafka's reports.

librdkafka tries again by itself and reports errors in events. Most of them are temporary, so they
are only stored (`Failures`), to give the reason when a call runs out of time.

Its log lines, one or more for each attempt to connect, go to the logger `counterpoise.librdkafka`,
which is silent unless a level is set on it: the exceptions carry the important information.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from confluent_kafka import KafkaError, KafkaException

from counterpoise.logs.address import setting
from counterpoise.logs.errors import (
    InvalidMessage,
    LogAccessRefused,
    LogError,
    LogNotFound,
    LogRefused,
    LogUnavailable,
)

PROPERTIES = frozenset(
    {
        "broker.address.family",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "compression.type",
        "group.id",
        "sasl.kerberos.keytab",
        "sasl.kerberos.principal",
        "sasl.kerberos.service.name",
        "sasl.mechanisms",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.extensions",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.token.endpoint.url",
        "security.protocol",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.keystore.location",
        "ssl.keystore.password",
    }
)
"""The properties that the query string of an access may set, by librdkafka's names."""

_ALIASES = {"sasl.mechanism": "sasl.mechanisms"}
_SECRETS = ("sasl.password", "sasl.oauthbearer.client.secret", "ssl.key.password")
_DEFAULT_PORT = 9092

librdkafka_logger = logging.getLogger("counterpoise.librdkafka")
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
# How librdkafka names a broker whose address the cluster has advertised, by its number.
_ADVERTISED = re.compile(r"(?:\w+://)?(\S+)/(\d+): ")
# librdkafka requires a group; nothing here uses its offsets.
_NO_MATTER = frozenset({KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._MAX_POLL_EXCEEDED})


@dataclass(frozen=True, slots=True)
class Access:
    """Properties common to all clients of one cluster. Secret."""

    properties: Mapping[str, str] = field(repr=False)

    def scrub(self, text: str) -> str:
        """`text` without the passwords that it may quote."""
        for name in (*_SECRETS, "ssl.keystore.password"):
            secret = self.properties.get(name)
            if secret:
                text = text.replace(secret, "***")
        return text

    def of(self, roles: str) -> dict[str, str]:
        """The properties for a client with this role: "consumer", "producer" or "admin"."""
        foreign = set()
        if roles != "consumer":
            foreign.add("group.id")
        if roles != "producer":
            foreign.add("compression.type")
        return {name: value for name, value in self.properties.items() if name not in foreign}


def parse_access(log: str, access: str | None) -> Access:
    """The access to the cluster of a log; without one, the log's own servers.

    Raises LogError, which names properties but never their values.
    """
    url = access or log
    try:
        parts = urlsplit(url)
    except ValueError:
        raise LogError("the access to Kafka is not a URL") from None
    userinfo, _, servers = parts.netloc.rpartition("@")
    properties = {"bootstrap.servers": ",".join(map(_with_port, servers.split(",")))}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        name = _ALIASES.get(name, name)
        if name not in PROPERTIES:
            near = difflib.get_close_matches(name, PROPERTIES, 1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise LogError(
                f"an access to Kafka takes no {setting(name)}{hint} It takes "
                f"{', '.join(sorted(PROPERTIES))}"
            )
        properties[name] = value
    if userinfo:
        user, _, password = userinfo.partition(":")
        properties["sasl.username"] = unquote(user)
        properties["sasl.password"] = unquote(password)
        properties.setdefault("security.protocol", "SASL_SSL")
        properties.setdefault("sasl.mechanisms", "PLAIN")
    return Access(properties)


def _with_port(server: str) -> str:
    host, _, port = server.rpartition(":")
    return server if host and port.isdecimal() else f"{server.rstrip(':')}:{_DEFAULT_PORT}"


if librdkafka_logger.level == logging.NOTSET:
    librdkafka_logger.setLevel(logging.CRITICAL + 1)


def _is_refusal(error: KafkaError | None) -> bool:
    return error is not None and error.code() in _REFUSED


class Failures:
    """The last errors of one log's clients. Written by librdkafka's callbacks.

    Other threads clear it at any time: so each call looks at it once.
    """

    def __init__(self, access: Access, topic: str) -> None:
        self._access = access
        self._topic = topic
        self._last: KafkaError | None = None

    def note(self, error: KafkaError) -> None:
        """Store an event; "all brokers are down" does not replace a more precise one."""
        if error.code() in _NO_MATTER:
            return
        last = self._last
        if error.code() == KafkaError._ALL_BROKERS_DOWN and last is not None:
            return
        if not _is_refusal(last):
            self._last = error

    def clear(self) -> None:
        """A call succeeded."""
        self._last = None

    def refused(self) -> bool:
        """Whether the cluster did not accept the credentials."""
        return _is_refusal(self._last)

    def too_late(self, what: str) -> LogError:
        """The exception for a call that ran out of time while it did `what`."""
        return self._too_late(what, self._last)

    def _too_late(self, what: str, last: KafkaError | None) -> LogError:
        if last is None:
            return LogUnavailable(f"Kafka was too slow: {what} exceeded its time limit")
        if _is_refusal(last):
            return self.told(last)
        return LogUnavailable(f"Kafka cannot be reached for {what}: {self._text(last)}")

    def told(self, error: KafkaError) -> LogError:
        """The exception for an error answer of the cluster."""
        text = self._text(error)
        if error.code() in _REFUSED:
            return LogAccessRefused(f"Kafka refuses the access to topic {self._topic!r}: {text}")
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return LogRefused(
                "Kafka does not let this user use the offsets of the consumer group: the user "
                "needs Describe and Read of the group, and Read of the topic"
            )
        if error.code() in _MISSING:
            return LogNotFound(f"Kafka has no topic {self._topic!r}, or not this partition of it")
        if error.code() in _NOT_TO_BE_HELD:
            return InvalidMessage(f"topic {self._topic!r} refuses a message: {text}")
        last = self._last
        if _is_refusal(last) or (error.code() == KafkaError._TIMED_OUT and last is not None):
            return self._too_late("an answer", last)
        if error.code() in _AWAY:
            return LogUnavailable(f"Kafka cannot be reached: {text}")
        return LogUnavailable(f"Kafka: {text}")

    def invalid(self, error: KafkaException) -> LogError:
        """The exception for a client that could not be made."""
        return LogError(f"the access to Kafka is not valid: {self._text(error.args[0])}")

    def _text(self, error: KafkaError) -> str:
        text = f"{error.str()} [{error.name()}]{self._advertised(error)}"
        return self._access.scrub(text)

    def _advertised(self, error: KafkaError) -> str:
        """What to check if the cluster itself has named the address that cannot be reached."""
        found = _ADVERTISED.match(error.str()) if error.code() in _AWAY else None
        if found is None or found[1] in self._access.properties["bootstrap.servers"].split(","):
            return ""
        return (
            f". The cluster advertises broker {found[2]} at {found[1]}, and this machine does not "
            "reach that address: correct the broker's advertised.listeners, or make it reachable"
        )


def is_passing(error: KafkaError) -> bool:
    """Whether librdkafka continues a read by itself after this event."""
    return error.code() not in _REFUSED and error.code() not in _MISSING
