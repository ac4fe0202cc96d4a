"""An error of the source reaches the program in its own words."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from counterpoise.spark.driver.plain_errors import own_words
from tests.counterpoise.spark.starting import started
from tests.counterpoise.spark.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

OF_A_QUERY = """\
[STREAM_FAILED] Query [id = 9b742226, runId = 938f854b] terminated with exception: \
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform \
latestOffset: Traceback (most recent call last):
  File "/lib/pyspark/sql/streaming/python_streaming_source_runner.py", line 226, in main
    latest_offset_func(reader, infile, outfile)
counterpoise.errors.ServiceUnavailable: no service answers

During handling of the above exception, another exception occurred:

  File "/lib/counterpoise/spark/queue_log.py", line 90, in retry_until
    raise CannotStart(
counterpoise.spark.errors.CannotStart: queue 'x': no service within 1 s: check the option 'url'
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Current State: ACTIVE"""


def test_the_last_error_of_ours_is_what_it_says() -> None:
    words = "CannotStart: queue 'x': no service within 1 s: check the option 'url'"
    assert own_words(OF_A_QUERY) == words
    one_line = f"Traceback:\ncounterpoise.spark.errors.{words} SQLSTATE: 38000"
    assert own_words(one_line) == words


@pytest.mark.parametrize(
    ("after", "is_ours"),
    [
        ("pyspark.errors.exceptions.base.PySparkRuntimeError: [FAILED]", True),
        ("FileNotFoundError: [Errno 2] No such file: '/backup'", False),
        ("StopIteration", False),
    ],
)
@pytest.mark.parametrize(
    "chained",
    [
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
    ],
)
def test_an_error_that_a_program_made_of_it_is_not_hidden(
    chained: str, after: str, is_ours: bool
) -> None:
    frames = (
        'Traceback (most recent call last):\n  File "program.py", line 12, in f\n    fall_back()'
    )
    ours, rest = OF_A_QUERY.split(" SQLSTATE: 38000")
    text = f"{ours}\n{chained}\n\n{frames}\n{after}\n\n=== Streaming Query ===\n{rest}"
    assert (own_words(text) is not None) == is_ours


KILLED = """\
{said}
=== Streaming Query ===
Identifier: [id = 9b742226, runId = 938f854b]
Current Committed Offsets: {{org.apache.spark.Stream@1: {{"counterpoise": 1, "queue": "x"}}}}
Current State: ACTIVE"""
FAILED = "[STREAM_FAILED] Query [id = 9b742226, runId = 938f854b] terminated with exception: "


@pytest.mark.parametrize(
    "said",
    [
        "Connection reset",
        "Broken pipe",
        f"{FAILED}Connection reset SQLSTATE: XXKST",
        f"{FAILED}null SQLSTATE: XXKST (no cause message)",
        "SQLSTATE: XXKST (no cause message)",
    ],
)
def test_a_source_that_was_killed_is_named_with_what_to_look_at(said: str) -> None:
    words = own_words(KILLED.format(said=said))
    assert words is not None
    assert "lack of memory" in words
    assert "dmesg" in words


@pytest.mark.parametrize(
    "text",
    [
        "",
        KILLED.format(said=""),
        KILLED.format(said="Job aborted: java.net.SocketException: Connection reset"),
        KILLED.format(said="Connection reset").replace("counterpoise", "kafka"),
        "ValueError: mine",
        "the program said counterpoise.spark.errors.CannotStart: in its own words",
        '  File "/lib/counterpoise/spark/driver/driver.py", line 280, in finish\nValueError: mine',
    ],
)
def test_other_errors_are_left_as_they_are(text: str) -> None:
    assert own_words(text) is None


@pytest.mark.long
def test_a_wrong_option_and_a_failed_query_say_it_first(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = spark.readStream.format("counterpoise").option("queue", "flights")
    with pytest.raises(AnalysisException) as refused:
        stream.option("subscribe", "topic").load()
    assert str(refused.value).startswith("InvalidOption: 'subscribe' is an option of Spark's Kafka")
    stream = spark.readStream.format("counterpoise").option("queue", "flights")
    stream = stream.options(url="http://127.0.0.1:9", startTimeoutSeconds="0")
    writer = stream.load().writeStream.format("noop")
    with caplog.at_level(logging.ERROR, "counterpoise.spark"):
        query = started(writer.option("checkpointLocation", str(tmp_path)))
        with pytest.raises(StreamingQueryException) as failed:
            query.awaitTermination()
        until(lambda: "has failed" in caplog.text, "it is in the log")
    assert str(failed.value).startswith("CannotStart: queue 'flights': no service within 0 s")
    assert len(str(failed.value).splitlines()) == 1
    assert str(query.exception()) == str(failed.value)
    assert f"query {query.id} has failed: CannotStart: queue 'flights'" in caplog.text
