"""A Kafka for experiments: librdkafka's mock cluster, in its own process on 127.0.0.1.

    with MockKafka() as kafka:
        kafka.create_topic("orders", 4)
        open_log(kafka.log("orders"))

It speaks Kafka's protocol, keeps everything in memory (at most 5 MiB for each partition: older
messages are dropped), needs no credentials, and ends with the process that started it. It is not a
full Kafka: it has no CreateTopics (topics are made here, or with four partitions at the first
publish), writes no transaction markers, does not compact, finds no offsets by time and cannot add
partitions to a topic. `grow_topic` makes the topic again with more partitions, empty.

Python's client does not offer the mock cluster's own calls, so they are made through ctypes.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

_PRODUCER = 0
_POINTER, _TEXT, _NUMBER = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
_PARAMETERS: dict[str, list[Any]] = {
    "topic_create": [_POINTER, _TEXT, _NUMBER, _NUMBER],
    "topic_delete": [_POINTER, _TEXT],
    "partition_delete_records": [_POINTER, _TEXT, ctypes.c_int32, ctypes.c_int64],
    "partition_set_leader": [_POINTER, _TEXT, ctypes.c_int32, ctypes.c_int32],
    "broker_set_down": [_POINTER, ctypes.c_int32],
    "broker_set_up": [_POINTER, ctypes.c_int32],
    "push_request_errors_array": [
        _POINTER,
        ctypes.c_int16,
        ctypes.c_size_t,
        ctypes.POINTER(_NUMBER),
    ],
    "set_controller_id": [_POINTER, ctypes.c_int32],
    "group_initial_rebalance_delay_ms": [_POINTER, ctypes.c_int32],
    "set_group_consumer_heartbeat_interval_ms": [_POINTER, _NUMBER],
}
# These return nothing.
_SILENT = (
    *("push_request_errors_array", "group_initial_rebalance_delay_ms"),
    "set_group_consumer_heartbeat_interval_ms",
)
# librdkafka's _TRANSPORT: as an answer it makes the mock cluster cut the connection.
_CUT = -195


class MockKafka:
    """The cluster, running from construction until `close`."""

    def __init__(self, brokers: int = 2) -> None:
        """The cluster runs when this returns. `bootstrap` is `host:port,…` of its brokers."""
        self._brokers = brokers
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(brokers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.bootstrap: str = self._answer()

    def log(self, topic: str) -> str:
        """The address of the topic as a queue's `log`."""
        return f"kafka://{self.bootstrap}/{topic}"

    def create_topic(self, topic: str, partition_count: int) -> None:
        """Make a topic, empty. Raises RuntimeError if it exists."""
        self._call("topic_create", topic, partition_count, 1)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages."""
        self._call("topic_delete", topic)

    def grow_topic(self, topic: str, partition_count: int) -> None:
        """Make the topic again with another partition count; its messages are lost."""
        self.delete_topic(topic)
        self.create_topic(topic, partition_count)

    def delete_records(self, topic: str, partition: int, below: int) -> None:
        """Delete the messages below an offset, as retention would."""
        self._call("partition_delete_records", topic, partition, below)

    def set_leader(self, topic: str, partition: int, broker: int | None) -> None:
        """Give a partition another leader, by the broker's number, or none."""
        self._call("partition_set_leader", topic, partition, -1 if broker is None else broker)

    def stop_brokers(self) -> None:
        """Cut all connections and accept no new ones; stored messages stay."""
        for broker in range(1, self._brokers + 1):
            self._call("broker_set_down", broker)

    def start_brokers(self) -> None:
        """Undo `stop_brokers`."""
        for broker in range(1, self._brokers + 1):
            self._call("broker_set_up", broker)

    def cut_instead_of_answering(self, request: int, times: int = 1) -> None:
        """Cut the connections of the next requests with this API key (Kafka's number)."""
        self.refuse(request, _CUT, times)

    def refuse(self, request: int, error: int, times: int = 1) -> None:
        """Answer the next requests with this API key with this error (Kafka's numbers)."""
        self._call("push_request_errors_array", request, times, [error] * times)

    def set_group_times(self, initial_delay_ms: int, heartbeat_ms: int) -> None:
        """How long the first member of a group waits for others (classic protocol), and how often
        members send heartbeats (KIP-848); by default 3 s both.
        """
        self._call("group_initial_rebalance_delay_ms", initial_delay_ms)
        self._call("set_group_consumer_heartbeat_interval_ms", heartbeat_ms)

    def close(self) -> None:
        """End the cluster."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(30)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _call(self, name: str, *arguments: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self._process.stdin.flush()
        code = self._answer()
        if code != 0:
            raise RuntimeError(f"{name} {arguments}: error {code}")

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the mock cluster has ended; is confluent-kafka installed?")
        return json.loads(line)


def serve(brokers: int) -> None:
    """Run a cluster until standard input ends, and carry out the commands in its lines."""
    from confluent_kafka import cimpl

    # The extension module is linked to librdkafka, so its symbols are found through it.
    library = ctypes.CDLL(cimpl.__file__)
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(library, name).restype = _POINTER
    library.rd_kafka_mock_cluster_bootstraps.restype = _TEXT
    library.rd_kafka_new.argtypes = [_NUMBER, _POINTER, _TEXT, ctypes.c_size_t]
    library.rd_kafka_mock_cluster_new.argtypes = [_POINTER, _NUMBER]
    library.rd_kafka_mock_cluster_bootstraps.argtypes = [_POINTER]
    client = library.rd_kafka_new(_PRODUCER, library.rd_kafka_conf_new(), None, 0)
    cluster = library.rd_kafka_mock_cluster_new(client, brokers)
    for name, parameters in _PARAMETERS.items():
        getattr(library, f"rd_kafka_mock_{name}").argtypes = parameters
    for name in _SILENT:
        getattr(library, f"rd_kafka_mock_{name}").restype = None
    # Without a controller, some requests are never answered.
    library.rd_kafka_mock_set_controller_id(cluster, 1)
    _say(library.rd_kafka_mock_cluster_bootstraps(cluster).decode())
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        call = getattr(library, f"rd_kafka_mock_{name}")
        _say(call(cluster, *map(_encoded, arguments)) or 0)


def _encoded(argument: Any) -> Any:
    if isinstance(argument, str):
        return argument.encode()
    if isinstance(argument, list):
        return (_NUMBER * len(argument))(*argument)
    return argument


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
