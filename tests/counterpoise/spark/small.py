"""Settings of small Sparks that start soon, for the tests."""

from __future__ import annotations

import os

LOCAL = "local[2]"
# Two executors with a JVM and a core each; tasks reach them over the network as on any cluster.
CLUSTER = "local-cluster[2,1,1024]"
SMALL_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SMALL = {
    "spark__ui__enabled": "false",
    "spark__ui__showConsoleProgress": "false",
    "spark__driver__host": "127.0.0.1",
    "spark__driver__bindAddress": "127.0.0.1",
    "spark__driver__memory": "512m",
    "spark__driver__extraJavaOptions": SMALL_JAVA,
    "spark__log__level": "ERROR",
    "spark__sql__session__timeZone": "UTC",
    "spark__sql__shuffle__partitions": "1",
    "spark__sql__streaming__checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}
SMALL_EXECUTORS = {
    "spark__executor__memory": "512m",
    "spark__executor__extraJavaOptions": SMALL_JAVA,
}


def with_small_java() -> dict[str, str]:
    """The environment for a program that creates its own sessions."""
    submit = f"--conf 'spark.driver.defaultJavaOptions={SMALL_JAVA}' pyspark-shell"
    return {**os.environ, "PYSPARK_SUBMIT_ARGS": submit}
