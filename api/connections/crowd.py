"""All open connections, and how many may wait.

A connection *waits* from its beginning, or the end of an answer, until a whole request has arrived:
with its handshake, its head and its body. That is all that a stranger can make of a connection, so
connections that wait are bounded for each address. Beyond the bound the one that waits longest is
ended, which an honest client hardly notices: it opens another one.

All connections together are bounded by the files that the process may open. Where there is no
further one, the connection that waits longest, of whatever address, makes room.
"""

from __future__ import annotations

import resource
import time
from collections import OrderedDict
from typing import Protocol

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from api.http.head import network_of

log = structlog.get_logger("api")

LOG_SECONDS = 10.0


class Member(Protocol):
    """A connection as the crowd sees it."""

    host: str
    """The peer's address."""

    def abort(self) -> None:
        """End it at once; whatever it has to say is lost."""


class Crowd:
    """The connections of one application."""

    def __init__(self, most_waiting_an_address: int, registry: CollectorRegistry) -> None:
        self.most_waiting_an_address = most_waiting_an_address
        # All connections together; the server sets it when it knows how many files it may open.
        self.most = 2**31
        self._logged_at = -LOG_SECONDS
        self._open: set[Member] = set()
        # The longest waiting first.
        self._waiting: OrderedDict[Member, None] = OrderedDict()
        self._by_address: dict[str, OrderedDict[Member, None]] = {}
        self.ended = Counter(
            "counterpoise_http_connections_ended",
            "Connections that the service has ended or not taken: too many of one address wait for "
            "a request, no files are left, the head of a request was too large or too slow, or "
            "what came was no HTTP.",
            ("reason",),
            registry=registry,
        )
        gauge = Gauge("counterpoise_http_connections", "Open connections.", registry=registry)
        gauge.set_function(lambda: len(self._open))

    def __len__(self) -> int:
        return len(self._open)

    def joins(self, member: Member) -> bool:
        """A connection was accepted, and waits. False if there is no room for it."""
        if len(self._open) >= self.most:
            self.out_of_files("the limit of connections is reached")
            if not self.make_room():
                return False
        self._open.add(member)
        self.waits(member)
        return True

    def waits(self, member: Member) -> None:
        """The connection waits for its next request."""
        self._waiting[member] = None
        of_address = self._by_address.setdefault(network_of(member.host), OrderedDict())
        of_address[member] = None
        if len(of_address) > self.most_waiting_an_address:
            self.ended.labels("address").inc()
            self._end(next(iter(of_address)))

    def works(self, member: Member) -> None:
        """A whole request has arrived on the connection."""
        if member not in self._waiting:
            return
        del self._waiting[member]
        network = network_of(member.host)
        of_address = self._by_address[network]
        del of_address[member]
        if not of_address:
            del self._by_address[network]

    def leaves(self, member: Member) -> None:
        """The connection has ended; repeating it is harmless."""
        self.works(member)
        self._open.discard(member)

    def out_of_files(self, error: str) -> None:
        """Say that a connection could not be accepted for lack of files; often is said once."""
        self.ended.labels("files").inc()
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            log.error(
                "too many files are open: connections that wait for a request make room",
                connections=len(self._open),
                limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                error=error,
            )

    def make_room(self) -> bool:
        """End the connection that waits longest; False if none waits."""
        longest = next(iter(self._waiting), None)
        if longest is None:
            return False
        self._end(longest)
        return True

    def _end(self, member: Member) -> None:
        self.leaves(member)
        member.abort()
