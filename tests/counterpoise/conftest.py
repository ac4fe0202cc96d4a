"""Services for the tests of what users import, and queues with logs of every kind."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tests.kafka_server import kafka
from tests.redis_server import redis_server

__all__ = ["kafka", "redis_server"]


@pytest.fixture(params=["builtin", "redis", "kafka"])
def log_settings(request: pytest.FixtureRequest) -> Callable[[int], dict[str, Any]]:
    """What `create_queue` is told of a log of each kind, with so many partitions."""

    def settings(partitions: int) -> dict[str, Any]:
        name = uuid.uuid4().hex
        if request.param == "kafka":
            # The count is the topic's.
            topics = request.getfixturevalue("kafka")
            topics.create_topic(name, partitions)
            return {"log": topics.log(name)}
        if request.param == "redis":
            log = request.getfixturevalue("redis_server").log(name)
            return {"partition_count": partitions, "log": log}
        return {"partition_count": partitions}

    return settings
