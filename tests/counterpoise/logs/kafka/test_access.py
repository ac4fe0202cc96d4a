"""Access to Kafka: the meaning of URLs, their limits, and secrets that stay secret."""

import logging

import pytest
from confluent_kafka import KafkaError

from counterpoise.logs import LogAccessRefused, LogError, LogUnavailable, open_log
from counterpoise.logs.kafka.access import Failures, parse_access

LOG = "kafka://one:9092,two:9093/orders"


def properties(access, log=LOG):
    return dict(parse_access(log, access).properties)


def test_without_an_access_the_logs_own_servers_are_used():
    assert properties(None) == {"bootstrap.servers": "one:9092,two:9093"}
    assert properties(None, "kafka://one/orders") == {"bootstrap.servers": "one:9092"}


def test_a_password_is_not_sent_unencrypted_unless_configured():
    found = properties("kafka://u:p%2F%40%3A@one:9094")
    assert found == {
        "bootstrap.servers": "one:9094",
        "sasl.username": "u",
        "sasl.password": "p/@:",
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "PLAIN",
    }
    found = properties(
        "kafka://u:p@one/orders?security.protocol=SASL_PLAINTEXT&sasl.mechanism=SCRAM-SHA-512"
    )
    assert found["security.protocol"] == "SASL_PLAINTEXT"
    assert found["sasl.mechanisms"] == "SCRAM-SHA-512"


@pytest.mark.parametrize(
    ("setting", "hint"),
    [("security.protcol=x", "did you mean security.protocol"), ("isolation.level=x", "takes no")],
)
def test_forbidden_settings_are_refused_with_the_nearest_valid_name(setting, hint):
    with pytest.raises(LogError, match=hint) as refusal:
        open_log(LOG, f"kafka://u:geheim@one?{setting}")
    assert "geheim" not in str(refusal.value)


def test_settings_that_make_no_sense_together_are_an_error_that_shows_no_secret():
    log = open_log(LOG, "kafka://u:geheim@one?security.protocol=geheim")
    with pytest.raises(LogError, match=r"not valid.*security\.protocol") as refusal:
        log.bounds([0])
    assert "geheim" not in str(refusal.value)
    assert not isinstance(refusal.value, LogUnavailable)
    assert "geheim" not in repr(log)
    assert "geheim" not in repr(parse_access(LOG, "kafka://u:geheim@one"))


def test_a_password_that_the_cluster_does_not_take_is_told_from_a_cluster_that_is_away(kafka):
    kafka.create_topic("closed", 1)
    access = f"kafka://u:geheim@{kafka.bootstrap}?security.protocol=SASL_PLAINTEXT"
    log = open_log(kafka.log("closed"), access, timeout_seconds=5)
    for act in (lambda: log.bounds([0]), lambda: list(log.read(0, "0", "5", max_messages=1))):
        with pytest.raises(LogAccessRefused) as refusal:
            act()
        assert "geheim" not in str(refusal.value)
    log.close()


@pytest.mark.long
def test_librdkafka_is_silent_unless_asked(capfd):
    log = open_log("kafka://127.0.0.1:1/orders", timeout_seconds=2)
    with pytest.raises(LogUnavailable, match="Connection refused"):
        log.bounds([0])
    with pytest.raises(LogUnavailable, match="Connection refused"):
        list(log.read(0, "0", "5", max_messages=1))
    log.close()
    assert capfd.readouterr().err == ""
    assert not logging.getLogger("counterpoise.librdkafka").isEnabledFor(logging.ERROR)


@pytest.mark.parametrize(
    ("broker", "is_advertised"),
    [
        ("10.0.0.7:9092/3", True),
        ("sasl_ssl://10.0.0.7:9092/3", True),
        ("10.0.0.7:9092/bootstrap", False),
        ("broker1:9092/3", False),  # the access names it
    ],
)
def test_an_unreachable_address_is_said_to_be_advertised_if_the_cluster_named_it(
    broker, is_advertised
):
    trouble = Failures(parse_access("kafka://broker1/orders", None), "orders")
    error = KafkaError(KafkaError._TRANSPORT, f"{broker}: Connect to ipv4#10.0.0.7:9092 failed")
    advice = "The cluster advertises broker 3 at 10.0.0.7:9092, "
    assert (advice in str(trouble.told(error))) is is_advertised
    trouble.note(error)
    assert (advice in str(trouble.too_late("an answer"))) is is_advertised


class Cleared(Failures):
    """Another thread clears it as soon as it was looked at."""

    @property
    def _last(self):
        return self.__dict__.pop("_last", None)

    @_last.setter
    def _last(self, error):
        self.__dict__["_last"] = error


@pytest.mark.parametrize("error", [KafkaError._TRANSPORT, KafkaError._AUTHENTICATION])
def test_what_another_thread_clears_meanwhile_is_told_all_the_same(error):
    trouble, later = Cleared(parse_access(LOG, None), "orders"), KafkaError(KafkaError._TIMED_OUT)
    for told in (trouble.too_late, lambda _: trouble.told(later)):
        trouble._last = KafkaError(error)
        assert KafkaError(error).name() in str(told("reading"))
    trouble._last = KafkaError(error)
    trouble.note(later)
