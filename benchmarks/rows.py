"""The yardsticks of what reads and writes rows, by other programs on the same machine.

* **Y3**: one ADBC connection (`adbc-driver-postgresql`) reads the rows of the log's own table into
  Arrow, partition by partition. It uses COPY and parses it in C++. It bounds neither the bytes in
  memory nor, if the server stops answering, the time.
* **Y4**: Spark reads the same rows from uncompressed Parquet into `noop`, with as many cores.
* **Y5**: psycopg copies the same rows (COPY FROM, binary) into a table like the log's, and commits
  as often. No row is numbered, checked for being a duplicate or routed.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from adbc_driver_postgresql import dbapi

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Y3, Y4, Y5 = "Y3", "Y4", "Y5"

_ROWS = """SELECT position, published_at, key, value, headers::text
    FROM counterpoise_log.messages WHERE log_id = {log_id} AND partition = {partition}
    ORDER BY position"""


class ArrowReader:
    """Y3: reads all rows of a log over one connection, which stays open."""

    def __init__(self, url: str, log: str, partitions: int) -> None:
        self._connection = dbapi.connect(url)
        with self._connection.cursor() as cursor:
            # Its statistics may suggest to sort the rows, on the disk: then it takes 1.7 times as
            # long as by the index.
            cursor.execute("SET enable_bitmapscan = off")
        self._connection.commit()
        with psycopg.connect(url) as connection:
            row = connection.execute(
                "SELECT log_id FROM counterpoise_log.logs WHERE name = %s", [log]
            ).fetchone()
        assert row is not None, f"there is no log {log}"
        self._statements = [
            _ROWS.format(log_id=int(row[0]), partition=one) for one in range(partitions)
        ]

    def per_second(self) -> float:
        """Rows a second."""
        began, rows = time.perf_counter(), 0
        with self._connection.cursor() as cursor:
            for statement in self._statements:
                cursor.execute(statement)
                rows += sum(batch.num_rows for batch in cursor.fetch_record_batch())
        took = time.perf_counter() - began
        self._connection.rollback()
        return rows / took

    def table(self) -> pa.Table:
        """All rows."""
        with self._connection.cursor() as cursor:
            tables = []
            for statement in self._statements:
                cursor.execute(statement)
                tables.append(cursor.fetch_arrow_table())
        self._connection.rollback()
        return pa.concat_tables(tables)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def write_parquet(table: pa.Table, directory: Path, files: int = 4) -> None:
    """The rows for Y4, uncompressed, so that all cores have something to read."""
    directory.mkdir()
    each = -(-len(table) // files)
    for number in range(files):
        part = table.slice(number * each, each)
        pq.write_table(part, directory / f"{number}.parquet", compression="NONE")


def parquet_per_second(spark: SparkSession, directory: Path, rows: int) -> float:
    """Y4: rows a second."""
    began = time.perf_counter()
    spark.read.parquet(str(directory)).write.format("noop").mode("overwrite").save()
    return rows / (time.perf_counter() - began)


class Copier:
    """Y5: copies rows into a table like the log's."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(
            "DROP TABLE IF EXISTS counterpoise_yardstick_rows;"
            "CREATE TABLE counterpoise_yardstick_rows"
            " (LIKE counterpoise_log.messages INCLUDING ALL)"
        )
        self._first = 0

    def per_second(self, value: bytes, messages: int, batch: int, partitions: int) -> float:
        """Rows a second, with a transaction for each `batch`."""
        began = time.perf_counter()
        for start in range(self._first, self._first + messages, batch):
            with (
                self._connection.cursor() as cursor,
                cursor.copy(
                    "COPY counterpoise_yardstick_rows (log_id, partition, position, published_at,"
                    " key, value) FROM STDIN (FORMAT BINARY)"
                ) as copy,
            ):
                copy.set_types(["int4", "int4", "int8", "timestamptz", "text", "bytea"])
                now = datetime.now(UTC)
                for number in range(start, start + batch):
                    row = (1, number % partitions, number, now, f"key-{number}", value)
                    copy.write_row(row)
        self._first += messages
        return messages / (time.perf_counter() - began)

    def close(self) -> None:
        """Drop the table."""
        self._connection.execute("DROP TABLE counterpoise_yardstick_rows")
        self._connection.close()
