"""A Kafka for the tests: librdkafka's mock cluster, one for the whole run.

Fixture (import it where needed): `kafka`. Make topics under names of your own.
"""

from collections.abc import Iterator

import pytest

from counterpoise.demo.mock_kafka import MockKafka

# Kafka's API key of the request for start and end offsets, for `cut_instead_of_answering`.
LIST_OFFSETS = 2


@pytest.fixture(scope="session")
def kafka() -> Iterator[MockKafka]:
    with MockKafka() as cluster:
        yield cluster
