"""`counterpoise doctor` and `lag` name what is wrong with a cluster of Apache Kafka.

Replicas that are away: tests/counterpoise/consumer/test_kafka_brokers.py.
"""

import json
import uuid

import pytest
from click.testing import CliRunner

from counterpoise.cli import doctor, reading
from counterpoise.cli.app import app
from counterpoise.client import Client
from tests.kafka_server import USER

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("kafka")]


@pytest.fixture
def topic(apache_kafka, served):
    """A topic, and the queue "orders" on it."""
    name = uuid.uuid4().hex
    apache_kafka.create_topic(name, 2)
    with Client(served.url) as client:
        client.create_queue("orders", log=apache_kafka.log(name))
    return name


@pytest.fixture
def through(monkeypatch):
    """`through(access)`: this machine has another access than the service, to another listener."""

    def set_access(access):
        monkeypatch.setenv("COUNTERPOISE_LOG_URL", access)
        # It would not be used for a queue whose log names another listener.
        monkeypatch.setattr(reading, "environment_access", lambda _: access)

    return set_access


def log_of(url):
    """What doctor says of the log of "orders"; not of a database that is slow at this moment."""
    command = ["doctor", "--json", "--queue", "orders"]
    said = CliRunner().invoke(app, command, env={"COUNTERPOISE_URL": url}).stdout
    return {one["check"]: (one["state"], one["found"]) for one in json.loads(said)}["log of orders"]


def test_a_cluster_where_all_is_well(topic, served, monkeypatch):
    for module in (doctor, reading):
        monkeypatch.setattr(module, "TIMEOUT_SECONDS", 150.0)
    state, found = log_of(served.url)
    assert state == "fine"
    assert f"/{topic} can be read" in found


def test_a_reachable_bootstrap_and_an_advertised_address_that_is_not(
    apache_kafka, topic, served, through, monkeypatch
):
    monkeypatch.setattr(reading, "TIMEOUT_SECONDS", 3.0)
    through(f"kafka://{apache_kafka.servers('LOST')}")
    state, found = log_of(served.url)
    assert state == "wrong"
    assert "advertises broker 1 at 127.0.0.1:1, and this machine does not reach" in found
    assert "advertised.listeners" in found


def test_a_password_that_is_refused(apache_kafka, topic, served, through, monkeypatch):
    # The answer is not awaited for so long.
    monkeypatch.setattr(reading, "TIMEOUT_SECONDS", 3600.0)
    through(
        f"kafka://{USER}:geheim@{apache_kafka.servers('SCRAM')}"
        "?security.protocol=SASL_PLAINTEXT&sasl.mechanisms=SCRAM-SHA-512"
    )
    state, found = log_of(served.url)
    assert state == "wrong"
    assert "refuses the access" in found
    assert "check the access to it in COUNTERPOISE_LOG_URL" in found
    assert "geheim" not in found


def test_a_topic_that_is_gone(apache_kafka, topic, served):
    apache_kafka.delete_topic(topic)
    state, found = log_of(served.url)
    assert state == "wrong"
    assert f"no topic {topic!r}" in found
    assert "or delete the queue" in found
