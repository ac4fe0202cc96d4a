"""The access to a Kafka cluster: from URLs to librdkafka's properties.

    kafka://user:password@host:port,host:port/TOPIC?security.protocol=SASL_SSL&sasl.mechanisms=PLAIN

The query string takes properties of librdkafka by their own names, but only those of `PROPERTIES`:
settings for order, loss and memory do not belong to the access. A user without
`security.protocol` means SASL_SSL, because a password must not travel in clear text unless this is
configured; without `sasl.mechanisms` it means PLAIN. An access is never shown: `Access` has no
repr of its content, and `scrub` removes its secrets from any text.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from counterpoise.logs.address import setting
from counterpoise.logs.errors import LogError

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
