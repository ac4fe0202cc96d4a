"""The names in `import counterpoise.spark`, and the modules that each Spark process loads."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.pandas.types import from_arrow_schema

import counterpoise.spark
from counterpoise.spark.data_source import CounterpoiseDataSource
from counterpoise.spark.errors import Unsupported
from counterpoise.spark.offsets import Slice
from counterpoise.spark.source.log_partition import ARROW_SCHEMA, LogPartition, LogSource

# Modules that only the query's own process and the sink use.
ELSEWHERE = {
    "counterpoise.client",
    "counterpoise.flow",
    "counterpoise.publisher",
    "counterpoise.spark.source.query",
    "counterpoise.spark.driver.draining",
    "counterpoise.spark.driver.listener",
    "counterpoise.spark.sink",
    "counterpoise.spark.state.handler",
    "httpx",
    "sqlalchemy",
}
ARROW = {"numpy", "pyarrow"}
# `open_log` loads a log's own module, only for its kind.
SERVERS = {"confluent_kafka", "psycopg", "redis"}

# Only tasks read.
READING = {"counterpoise.logs.columns", "counterpoise.spark.source.tasks", "pyarrow.compute"}
# Of ours, and of msgspec, httpx and Python, beyond those of Spark's own process.
MOST_MODULES = 160

SCHEMA = from_arrow_schema(ARROW_SCHEMA)
# Like the class that `register` makes: pickled by value, on one of ours, pickled by name.
REGISTERED = type("SessionDataSource", (CounterpoiseDataSource,), {"cores": 2, "home": "/home"})
SOURCE = REGISTERED({"queue": "flights", "url": "http://127.0.0.1:1"})
PARTITION = LogPartition(LogSource("builtin:flights", None), (Slice(0, 1, "0", "9"),))


def loaded(process: str, act: str, *objects: Any) -> set[str]:
    """The modules that `act` on the unpickled `objects` adds to those of Spark's process."""
    code = f"""if True:
        import sys
        import {process}
        from pyspark.serializers import CloudPickleSerializer
        before = set(sys.modules)
        objects = CloudPickleSerializer().loads(sys.stdin.buffer.read())
        {act}
        print(*(set(sys.modules) - before))
    """
    said = subprocess.run(
        [sys.executable, "-c", code],
        input=CloudPickleSerializer().dumps(objects),
        capture_output=True,
        check=True,
    )
    found = set(said.stdout.decode().split())
    assert "counterpoise.spark.data_source" in found
    return found


def test_every_public_name_is_there() -> None:
    everything: dict[str, Any] = {}
    exec("from counterpoise.spark import *", everything)
    assert set(counterpoise.spark.__all__) == everything.keys() - {"__builtins__"}
    for name in counterpoise.spark.__all__:
        assert getattr(counterpoise.spark, name) is everything[name]
        assert everything[name].__name__ == name
        assert name in dir(counterpoise.spark)


def test_a_name_that_is_not_there_is_no_attribute() -> None:
    assert not hasattr(counterpoise.spark, "nothing")
    with pytest.raises(ImportError, match="nothing"):
        exec("from counterpoise.spark import nothing")


def test_the_process_that_checks_the_options_loads_no_arrow() -> None:
    process = "pyspark.sql.worker.create_data_source"
    act = "objects[0](options={'queue': 'flights'}).schema()"
    assert not loaded(process, act, REGISTERED) & {*ELSEWHERE, *SERVERS, *ARROW}


@pytest.mark.long
def test_the_process_that_plans_a_stream_does_not_load_the_flow() -> None:
    process = "pyspark.sql.worker.plan_data_source_read"
    act = "objects[0].streamReader(objects[1])"
    assert not loaded(process, act, SOURCE, SCHEMA) & {*ELSEWHERE, *SERVERS, *READING}


@pytest.mark.long
def test_the_process_of_a_query_loads_no_more_than_it_did_before_its_first_row() -> None:
    """Spark waits for each of these modules; they are counted as with the extra `spark` alone."""
    process = "pyspark.sql.streaming.python_streaming_source_runner"
    act = """sys.modules.update(dict.fromkeys(("click", "rich")))
        objects[0].streamReader(objects[1]).initialOffset()
        import counterpoise.spark.source.opening
    """
    found = loaded(process, act, SOURCE, SCHEMA)
    assert not found & {*SERVERS, *READING, "asyncio", "pandas", "sqlalchemy"}
    assert len(found) <= MOST_MODULES


@pytest.mark.long
@pytest.mark.parametrize("reader", [SOURCE.streamReader(SCHEMA), SOURCE.reader(SCHEMA)])
def test_a_task_does_not_load_the_services_client(reader: Any) -> None:
    """Spark makes a process for each task of a micro-batch, each without these modules at first."""
    act = "assert objects[0].read(objects[2])"
    assert not loaded("pyspark.worker", act, reader, SOURCE, PARTITION) & {*ELSEWHERE, *SERVERS}


@pytest.mark.parametrize(
    ("version", "found"),
    [("3.5.1", "PySpark 3.5.1"), ("5.0.0", "PySpark 5.0.0")],
)
def test_another_pyspark_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, version: str, found: str
) -> None:
    monkeypatch.setattr("pyspark.__version__", version)
    with pytest.raises(ImportError) as refused:
        from counterpoise.spark import register  # noqa: F401
    assert str(refused.value) == (
        f"counterpoise.spark needs PySpark 4.0 or later, below 5, and {found} is installed: "
        "pip install --upgrade 'counterpoise[spark]'"
    )
    assert "\n" not in str(refused.value)


def test_processors_are_refused_where_pyspark_has_none_for_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.0.5")
    with pytest.raises(Unsupported, match="processors need PySpark 4"):
        type("Mine", (counterpoise.spark.TenuredProcessor,), {})


def test_no_pyspark_is_refused_in_one_line() -> None:
    code = "import sys; sys.modules['pyspark'] = None; import counterpoise.spark as s; s.register"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "and none is installed" in said.stderr.splitlines()[-1]
