"""Calls on one Redis server: bounded in time, with errors of our own.

The access contains a password, so no message and no repr shows it. In a cluster a log is on one
node, by its hash tag. The cluster names this node (MOVED), and the client goes there; if the node
fails, the client begins again at the configured address. So it does if the server has become a
replica: a name or a proxy may lead to its successor by now.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from counterpoise.logs.address import LogAddress, setting
from counterpoise.logs.errors import (
    InvalidMessage,
    LogAccessRefused,
    LogError,
    LogUnavailable,
)

T = TypeVar("T")

_CONNECT_SECONDS = 10.0
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_keyfile")
# Errors that are temporary or that an operator can resolve, and their messages.
_PASSING: Mapping[str, str] = {
    "OOM": "it has reached its maxmemory and accepts no messages until some are trimmed",
    "READONLY": "it is a replica and accepts no messages",
    "LOADING": "it is still loading its data",
    "MISCONF": "it cannot persist and accepts no messages",
    "NOREPLICAS": "too few replicas follow it (min-replicas-to-write)",
    "MASTERDOWN": "its primary is down",
    "CLUSTERDOWN": "the cluster is down",
    "TRYAGAIN": "the cluster moves the log's slot",
    "ASK": "the cluster moves the log's slot",
    "BUSY": "it is busy with another script",
    "max number of clients": "it has too many clients (maxclients)",
}
# The client removes these codes from the text and expresses them by the error's type. A subclass
# comes before its base.
_PASSING_TYPES: Mapping[type[Exception], str] = {
    redis.exceptions.OutOfMemoryError: "OOM",
    redis.exceptions.ReadOnlyError: "READONLY",
    redis.exceptions.BusyLoadingError: "LOADING",
    redis.exceptions.MasterDownError: "MASTERDOWN",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.exceptions.TryAgainError: "TRYAGAIN",
    redis.exceptions.AskError: "ASK",
}
# No server's `proto-max-bulk-len` is lower.
LEAST_LIMIT_BYTES = 1024 * 1024
# A server that takes an argument waits for it and says nothing. One that does not take it says so
# at once; if it is slower than this, the next attempt asks again.
_REFUSAL_SECONDS = 1.0
# The others are in the text; so are all codes of errors inside scripts of servers before 7.
_PASSING_WORD = re.compile(r"(?:^|[\s-])(" + "|".join(_PASSING) + r")\b")
# Servers before 7 report errors inside scripts without a code.
_REFUSED_WORD = re.compile(
    r"(?:^|[\s-])(NOAUTH|WRONGPASS|NOPERM)\b|user executing the script can't|ACL failure in script"
)
_TOO_LARGE = "invalid bulk length"
_MOVES = 5


class ConnectionCut(LogUnavailable):
    """The server cannot be reached, or has closed the connection. It does so, without a reason,
    when an answer or an argument is larger than it allows.
    """


class Script:
    """A script, sent by its digest, or in full if the server does not know it."""

    def __init__(self, source: str) -> None:
        self._source = source.encode()
        self._digest = hashlib.sha1(self._source, usedforsecurity=False).hexdigest()

    def run(self, client: Any, keys: Sequence[bytes], arguments: Sequence[Any]) -> Any:
        """The script's answer. A restarted server has forgotten the script."""
        try:
            return client.execute_command("EVALSHA", self._digest, len(keys), *keys, *arguments)
        except redis.exceptions.NoScriptError:
            return client.execute_command("EVAL", self._source, len(keys), *keys, *arguments)


class RedisConnection:
    """A pool of connections to the server that has the log. Thread-safe, and safe after a fork."""

    def __init__(self, address: LogAddress, access: str | None, timeout_seconds: float) -> None:
        """Nothing is connected yet. Raises LogError for unknown settings."""
        self._options = _options(address, access, timeout_seconds)
        self._lock = threading.Lock()
        self._moved_to: tuple[str, int] | None = None
        self._client: Any = None
        self._process = os.getpid()

    @property
    def where(self) -> str:
        """The configured address."""
        return f"{self._options['host']}:{self._options['port']}"

    def call(self, act: Callable[[Any], T], *, retry: bool) -> T:
        """The result of `act`. With `retry`, a broken connection is replaced and
        `act` repeated once.

        Raises LogUnavailable, LogAccessRefused, LogError.
        """
        for move in range(_MOVES):
            client = self._connected()
            try:
                return act(client)
            except redis.exceptions.MovedError as moved:
                self._move((moved.host or str(self._options["host"]), moved.port))
                continue
            except redis.exceptions.RedisError as error:
                broken = isinstance(error, redis.exceptions.ConnectionError)
                away = self._moved_to
                if away is not None and isinstance(
                    error, redis.exceptions.ConnectionError | redis.exceptions.TimeoutError
                ):
                    self._move(None)
                    if retry and move < _MOVES - 1:
                        continue
                if retry and broken and not is_refused(error):
                    retry = False
                    continue
                if _passing(error) == "READONLY":
                    # After a failover the address may lead to another server, and this one lives.
                    self.close()
                if _TOO_LARGE in str(error):
                    # The server closes this connection, perhaps later than the next call begins.
                    client.connection_pool.disconnect(inuse_connections=False)
                raise self._in_our_words(error) from None
        raise LogUnavailable(f"the Redis cluster at {self.where} redirects in a circle")

    def script(self, script: Script, keys: Sequence[bytes], *arguments: Any, retry: bool) -> Any:
        """Run a script. Raises what `call` raises."""
        return self.call(lambda client: script.run(client, keys, arguments), retry=retry)

    def announce(self, size_bytes: int) -> None:
        """Announce an argument of this size. Raises InvalidMessage if the server takes none.

        It says so as soon as it has the size. If the argument follows, its words are mostly lost.
        """

        def act(client: Any) -> None:
            connection = client.connection_pool.make_connection()
            try:
                connection.connect()
                connection.send_packed_command([b"*1\r\n$%d\r\n" % size_bytes])
                if connection.can_read(_REFUSAL_SECONDS):
                    connection.read_response()
            finally:
                connection.disconnect()

        self.call(act, retry=False)

    def close(self) -> None:
        """Close the connections; the next call makes new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self) -> Any:
        with self._lock:
            if self._process != os.getpid():
                # A forked child leaves its parent's connections alone.
                self._client, self._process = None, os.getpid()
            if self._client is None:
                options = dict(self._options)
                if self._moved_to is not None:
                    options["host"], options["port"] = self._moved_to
                self._client = redis.Redis(**options)
                # The answers stay as lists: building dictionaries would cost more than reading.
                for command in ("XRANGE", "XREAD", "HMGET"):
                    self._client.set_response_callback(command, lambda answer, **_: answer)
            return self._client

    def _move(self, node: tuple[str, int] | None) -> None:
        self.close()
        with self._lock:
            self._moved_to = node

    def _in_our_words(self, error: redis.exceptions.RedisError) -> LogError:
        message = str(error)
        if is_refused(error):
            return LogAccessRefused(
                f"the Redis at {self.where} refused the credentials or requires some (user and "
                f"password belong to COUNTERPOISE_LOG_URL or logUrl): {message}"
            )
        if _TOO_LARGE in message:
            return InvalidMessage(
                f"the Redis at {self.where} takes no value, key or headers of such a size: its "
                "proto-max-bulk-len is less"
            )
        passing = _passing(error)
        if passing is not None:
            why = _PASSING[passing]
            return LogUnavailable(f"the Redis at {self.where} cannot do this now: {why}")
        if isinstance(error, redis.exceptions.TimeoutError):
            seconds = self._options["socket_timeout"]
            return LogUnavailable(f"the Redis at {self.where} did not answer within {seconds:g} s")
        if isinstance(error, redis.exceptions.ConnectionError):
            return ConnectionCut(f"the Redis at {self.where} cannot be reached: {message}")
        return LogError(f"the Redis at {self.where} failed: {message}")


def _passing(error: Exception) -> str | None:
    """The key of _PASSING for this error, None for other errors."""
    for kind, code in _PASSING_TYPES.items():
        if isinstance(error, kind):
            return code
    word = _PASSING_WORD.search(str(error))
    return word.group(1) if word is not None else None


def is_refused(error: Exception) -> bool:
    """Whether the user lacks a right, or is not known."""
    return isinstance(
        error, redis.exceptions.AuthenticationError | redis.exceptions.NoPermissionError
    ) or bool(_REFUSED_WORD.search(str(error)))


def _options(address: LogAddress, access: str | None, timeout_seconds: float) -> dict[str, Any]:
    """The arguments of a client. Raises LogError, which names settings but never their values."""
    ((host, port),) = address.hosts
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "db": address.database,
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": min(_CONNECT_SECONDS, timeout_seconds),
        "protocol": 2,
        # This module decides which calls are repeated.
        "retry": Retry(NoBackoff(), 0),
        "socket_read_size": 256 * 1024,
        # The pool counts those that are made apart from it, and never forgets them.
        "max_connections": 2**31,
    }
    secure = address.secure
    if access is not None:
        parts = urlsplit(access)
        secure = secure or parts.scheme.lower() == "rediss"
        if parts.hostname is not None:
            options["host"], options["port"] = parts.hostname, parts.port or 6379
        options["username"] = unquote(parts.username) if parts.username else None
        options["password"] = unquote(parts.password) if parts.password else None
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name not in _TLS_OPTIONS:
                raise LogError(
                    f"access to Redis has no {setting(name)}; there are {', '.join(_TLS_OPTIONS)}"
                )
            options[name] = value
    if secure:
        options["ssl"] = True
    elif any(name in options for name in _TLS_OPTIONS):
        raise LogError("settings of TLS need an access with the scheme rediss://")
    return options
