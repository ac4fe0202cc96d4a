"""librdkafka's clients of one log: made when needed, shared if possible, never used after a fork.

A client has several threads and connections. Threads do not survive a fork, and closing a client
without its threads blocks for ever. So a forked child does not use inherited clients and never
deallocates them (`leave_alone`); it makes its own clients.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from counterpoise.logs.kafka.access import Access
from counterpoise.logs.kafka.appender import PRODUCER
from counterpoise.logs.kafka.failures import Trouble, librdkafka_logger
from counterpoise.logs.kafka.reader import CONSUMER

# There are few reads at a time, and an idle consumer costs little.
IDLE_CONSUMERS = 4
_GROUP = "counterpoise"


class Clients:
    """The clients of one log. Thread-safe."""

    def __init__(self, access: Access, trouble: Trouble) -> None:
        self._access = access
        self._trouble = trouble
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None
        self._idle: list[Consumer] = []

    def admin(self) -> AdminClient:
        """The client for questions. Raises LogError if the access is not valid."""
        with self._lock:
            if self._admin is None:
                self._admin = self._make(AdminClient, "admin", {})
            return self._admin

    def producer(self) -> Producer:
        """A new producer, which the caller keeps. Raises LogError if the access is not valid."""
        producer: Producer = self._make(Producer, "producer", PRODUCER)
        return producer

    @contextmanager
    def consumer(self) -> Iterator[Consumer]:
        """A consumer for one reader at a time; it is unassigned afterwards."""
        with self._lock:
            consumer = self._idle.pop() if self._idle else None
        if consumer is None:
            consumer = self._make(Consumer, "consumer", {"group.id": _GROUP, **CONSUMER})
        made_in = os.getpid()
        try:
            yield consumer
        finally:
            if os.getpid() != made_in:
                # The fork happened during a read.
                leave_alone(consumer)
            else:
                self._give_back(consumer)

    def close(self) -> None:
        """Close unused clients. Clients are made anew when needed."""
        with self._lock:
            idle, self._idle = self._idle, []
            # An admin client ends when the last question is answered.
            self._admin = None
        for consumer in idle:
            consumer.close()

    def abandon(self) -> None:
        """In a forked child: forget all clients without touching them."""
        self._lock = threading.Lock()
        leave_alone(self._admin, *self._idle)
        self._admin = None
        self._idle = []

    def _give_back(self, consumer: Consumer) -> None:
        try:
            consumer.unassign()
        except (KafkaException, RuntimeError):
            consumer.close()
            return
        with self._lock:
            if len(self._idle) < IDLE_CONSUMERS:
                self._idle.append(consumer)
                return
        consumer.close()

    def _make(self, kind: Callable[..., Any], role: str, properties: dict[str, Any]) -> Any:
        settings = {
            "client.id": "counterpoise",
            "reconnect.backoff.max.ms": 1000,
            "socket.keepalive.enable": True,
            **properties,
            **self._access.of(role),
            "error_cb": self._trouble.note,
            "logger": librdkafka_logger,
        }
        try:
            return kind(settings)
        except KafkaException as wrong:
            raise self._trouble.invalid(wrong) from None


def leave_alone(*clients: object) -> None:
    """Keep these from ever being deallocated in this process."""
    for client in clients:
        if client is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
