"""Logs for the tests: `kit` and `log` of each kind for the contract, built-in ones for the rest."""

import uuid
from collections.abc import Iterator

import pytest

from counterpoise.logs import Log
from tests.counterpoise.logs.kits import KITS, KafkaKit, LogKit, PostgresKit, RedisKit
from tests.kafka_server import kafka
from tests.log_support import log, log_url
from tests.redis_server import redis_server

__all__ = ["any_log", "kafka", "kit", "log", "log_url", "redis_server"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a kind of log does not promise: such a test would show nothing."""
    left_out = [item for item in items if _lacking(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _lacking(item: pytest.Item) -> frozenset[str]:
    needed = {name for mark in item.iter_markers("needs") for name in mark.args}
    if not needed or not isinstance(item, pytest.Function):
        return frozenset()
    return KITS[str(item.callspec.params["kit"])].lacks & needed


@pytest.fixture(params=list(KITS))
def kit(request: pytest.FixtureRequest) -> Iterator[LogKit]:
    """A log of each kind that does not exist yet; see `LogKit`."""
    made: LogKit
    if request.param == "builtin":
        made = PostgresKit(request.getfixturevalue("log_url"))
    elif request.param == "kafka":
        made = KafkaKit(request.getfixturevalue("kafka"), uuid.uuid4().hex)
    else:
        made = RedisKit(request.getfixturevalue("redis_server"), uuid.uuid4().hex)
    yield made
    made.close()


@pytest.fixture
def any_log(kit: LogKit) -> Log:
    """The kit's log, with four partitions."""
    kit.make(4)
    return kit.open()
