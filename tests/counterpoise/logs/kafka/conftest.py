"""A topic of a cluster, and its log: of the mock, and of Apache Kafka."""

import uuid

import pytest

from counterpoise.logs import open_log
from tests.counterpoise.logs.kits import MARKS
from tests.kafka_server import kafka as mock_kafka

__all__ = ["mock_kafka"]

CLUSTERS = {"mock": "mock_kafka", "apache kafka": "apache_kafka"}

# For tests of faults on demand.
only_the_mock = pytest.mark.parametrize("kafka", ["mock"], indirect=True)


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in CLUSTERS])
def kafka(request):
    return request.getfixturevalue(CLUSTERS[request.param])


@pytest.fixture
def topic(kafka):
    name = uuid.uuid4().hex
    kafka.create_topic(name, 4)
    return name


@pytest.fixture
def log(kafka, topic):
    log = open_log(kafka.log(topic), timeout_seconds=10)
    yield log
    log.close()
