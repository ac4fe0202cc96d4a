"""Consumers of one topic that are told apart only by who gives them partitions.

Each runs in threads of its own in this process, and tells an observer what it says and gets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from benchmarks.observer import Observer
from counterpoise.consumer import Consumer

Options = Mapping[str, Any]
POLL_SECONDS = 0.1
# librdkafka's own lines; a member that leaves during a rebalance writes some.
SILENT = {"log_level": 0}


class Member(Protocol):
    """A consumer that runs until it is stopped."""

    name: str

    def stop(self) -> None:
        """Leave in order; returns at once."""

    def join(self) -> None:
        """Wait until it has left. Raises what it has raised."""


class _Threaded:
    """Runs `_run` in a thread."""

    def __init__(self, name: str, observer: Observer) -> None:
        self.name, self._observer = name, observer
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, name=name)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()

    def join(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:  # raised again by `join`
            self._error = error
        finally:
            self._observer.left(self.name)

    def _run(self) -> None:
        raise NotImplementedError


class CounterpoiseMember(_Threaded):
    """A plain consumer of a queue. It drains when it leaves."""

    def __init__(
        self, url: str, queue: str, options: Options, name: str, observer: Observer
    ) -> None:
        def told(gained: bool) -> Callable[..., None]:
            def call(owned: Any, *_: Any) -> None:
                observer.changed(name, [owned.partition], gained=gained, epoch=owned.epoch)

            return call

        self._consumer = Consumer(
            queue,
            each=lambda one: observer.arrived(name, one.partition, int(one.position)),
            url=url,
            client_name=name,
            on_granted=told(True),
            on_revoking=told(False),
            on_lost=told(False),
            **options,
        )
        super().__init__(name, observer)

    def stop(self) -> None:
        self._consumer.stop()

    def _run(self) -> None:
        self._consumer.run()


class GroupMember(_Threaded):
    """A member of a consumer group, classic or KIP-848: confluent-kafka's `Consumer`."""

    def __init__(self, options: Options, topic: str, name: str, observer: Observer) -> None:
        self._options = {**SILENT, "auto.offset.reset": "earliest", **options, "client.id": name}
        self._topic = topic
        super().__init__(name, observer)

    def _run(self) -> None:
        from confluent_kafka import Consumer as KafkaConsumer

        def told(gained: bool) -> Callable[[Any, Any], None]:
            def call(_: Any, partitions: Any) -> None:
                numbers = [one.partition for one in partitions]
                self._observer.changed(self.name, numbers, gained=gained)

            return call

        consumer = KafkaConsumer(self._options)
        consumer.subscribe(
            [self._topic], on_assign=told(True), on_revoke=told(False), on_lost=told(False)
        )
        while not self._over.is_set():
            message = consumer.poll(POLL_SECONDS)
            if message is not None and message.error() is None:
                self._observer.arrived(self.name, message.partition(), message.offset())
        consumer.close()


class ShareMember(_Threaded):
    """A member of a share group. It cannot say what it owns: partitions have no owners there."""

    def __init__(self, options: Options, topic: str, name: str, observer: Observer) -> None:
        self._options = {**SILENT, **options, "client.id": name}
        self._topic = topic
        super().__init__(name, observer)

    def _run(self) -> None:
        from confluent_kafka import ShareConsumer

        consumer = ShareConsumer(self._options)
        consumer.subscribe([self._topic])
        while not self._over.is_set():
            for message in consumer.poll(POLL_SECONDS):
                if message.error() is None:
                    self._observer.arrived(self.name, message.partition(), message.offset())
        # What the last poll brought was handled.
        consumer.commit_sync(POLL_SECONDS * 100)
        consumer.close()
