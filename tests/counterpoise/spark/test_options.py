import pytest

from counterpoise.spark.errors import InvalidOption
from counterpoise.spark.options import DEFAULT_MESSAGES_PER_TRIGGER, SourceOptions, read_options
from counterpoise.spark.warmup.floor import Floor


def test_names_come_in_any_case() -> None:
    options = read_options(
        {
            "QUEUE": "q",
            "url": "http://h:1",
            "maxmessagespertrigger": "7",
            "leaseseconds": "2.5",
            "instanceid": "a",
            "onTrimmed": "Earliest",
        }
    )
    assert options == SourceOptions(
        queue="q",
        url="http://h:1",
        instance_id="a",
        lease_seconds=2.5,
        max_messages_per_trigger=7,
        on_trimmed="earliest",
    )


def test_warm_up_is_asked_for_with_what_history_it_needs() -> None:
    assert not read_options({"queue": "q"}).warmup
    options = read_options({"queue": "q", "warmup": "true", "warmupFrom": "30m"})
    assert options.warmup
    assert options.warmup_from == Floor(seconds=1800)


def test_defaults() -> None:
    options = read_options({"queue": "q"})
    assert options == SourceOptions(queue="q")
    assert options.max_messages_per_trigger == DEFAULT_MESSAGES_PER_TRIGGER
    unlimited = read_options({"queue": "q", "maxMessagesPerTrigger": "unlimited"})
    assert unlimited.max_messages_per_trigger is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "'queue' is missing"),
        ({"queue": "q", "warmup": "yes"}, "one of false, true"),
        ({"queue": "q", "warmupFrom": "latest"}, "'warmupFrom' is earliest, a number"),
        ({"queue": " "}, "'queue' is missing"),
        ({"queue": "q", "que": "x"}, "did you mean 'queue'"),
        ({"queue": "q", "maxoffsetspertrigger": "5"}, "did you mean 'maxMessagesPerTrigger'"),
        ({"queue": "q", "instance_id": "5"}, "did you mean 'instanceId'"),
        ({"queue": "q", "path": "/x"}, "takes no path"),
        ({"queue": "q", "zzz": "5"}, "the options are queue, url,"),
        ({"queue": "q", "leaseSeconds": "0"}, r"\(1..3600\), not '0'"),
        ({"queue": "q", "leaseSeconds": "nan"}, "not 'nan'"),
        ({"queue": "q", "maxMessagesPerTrigger": "0"}, "at least 1"),
        ({"queue": "q", "maxMessagesPerTrigger": "-5"}, "at least 1"),
        ({"queue": "q", "onTrimmed": "latest"}, "one of fail, earliest"),
        ({"queue": "q", "url": "ftp://x"}, "http:// or https://"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        read_options(given)


def test_the_secret_is_neither_shown_nor_sent_to_tasks() -> None:
    options = read_options({"queue": "q", "logUrl": "postgresql://u:hunter2@h/d"})
    assert options.log_url is not None
    assert "hunter2" not in repr(options)
    assert options.for_tasks().log_url is None
