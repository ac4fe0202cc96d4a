"""A topic of the mock cluster, and its log."""

import uuid

import pytest

from counterpoise.logs import open_log


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
