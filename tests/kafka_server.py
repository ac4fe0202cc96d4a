"""A Kafka for the tests: librdkafka's mock cluster, one for the whole run.

Fixture (import it where needed): `kafka`. Make topics under names of your own.
"""

from collections.abc import Iterator

import pytest

from counterpoise.demo.mock_kafka import MockKafka


@pytest.fixture(scope="session")
def kafka() -> Iterator[MockKafka]:
    with MockKafka() as cluster:
        yield cluster
