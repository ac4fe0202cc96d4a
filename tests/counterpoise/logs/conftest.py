"""Logs for the tests: `kit` and `log` of each kind for the contract, built-in ones for the rest."""

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest

from counterpoise.logs import Log, numbered
from counterpoise.logs.kafka import reader as kafka_reader
from counterpoise.logs.kafka import watching as kafka_watching
from counterpoise.logs.record_batch import record_batch
from counterpoise.logs.rows import Rows
from tests.counterpoise.logs.kits import (
    KafkaKit,
    LogKit,
    MemoryKit,
    MockKafkaKit,
    PostgresKit,
    RedisKit,
    kits,
)
from tests.kafka_server import kafka
from tests.log_support import log, log_url
from tests.redis_server import redis_server

__all__ = ["any_log", "kafka", "kit", "log", "log_url", "redis_server"]


@pytest.fixture(autouse=True)
def both_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test here reads as a batch of Arrow is the same as Python's values, and says so."""

    def checked(rows: Rows) -> pa.RecordBatch:
        batch = record_batch(rows)
        assert rows.to_pylist() == batch.to_pylist()
        return batch

    monkeypatch.setattr(numbered, "to_arrow", lambda: checked)


@pytest.fixture(params=list(kits()))
def kit(request: pytest.FixtureRequest) -> Iterator[LogKit]:
    """A log of each kind that does not exist yet; see `LogKit`."""
    made: LogKit
    if "kafka" in request.param:  # readers that wait for long are not what takes the time
        request.getfixturevalue("monkeypatch").setattr(kafka_watching, "NEW_SECONDS", 0.2)
    if request.param == "builtin":
        made = PostgresKit(request.getfixturevalue("log_url"))
    elif request.param == "memory":
        made = MemoryKit()
    elif request.param == "kafka":
        # The mock answers a fetch that waits when its time is over, whatever comes meanwhile.
        patch = request.getfixturevalue("monkeypatch")
        patch.setitem(kafka_reader.WATCHING, "fetch.wait.max.ms", 50)
        made = MockKafkaKit(request.getfixturevalue("kafka"), uuid.uuid4().hex)
    elif request.param == "apache kafka":
        made = KafkaKit(request.getfixturevalue("apache_kafka"), uuid.uuid4().hex)
    else:
        made = RedisKit(request.getfixturevalue("redis_server"), uuid.uuid4().hex)
    yield made
    made.close()


@pytest.fixture
def any_log(kit: LogKit) -> Log:
    """The kit's log, with four partitions."""
    kit.make(4)
    return kit.open()
