"""Spark's daemon in local Sparks of the tests: its workers are forked with all that they load.

Each worker would load the sources' and the sinks' modules anew, for a second of processor time, and
after each task Python's collector goes through them. There are a few workers for each session, and
hundreds in a run of the tests. Spark's own daemon runs in the tests on clusters.
"""

from __future__ import annotations

import gc

import psycopg  # noqa: F401
import sqlalchemy.dialects.postgresql.psycopg  # noqa: F401
from pyspark import daemon

import counterpoise.spark.sink.writer
import counterpoise.spark.source.tasks  # noqa: F401

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    daemon.manager()
