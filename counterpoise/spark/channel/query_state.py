"""Which sources of a driver are read by queries that keep state in Spark.

A source does not see what its query does with its rows. The driver does: when a query starts, Spark
waits until its listeners have seen it. So the driver then writes a document for each query that
keeps state (`state`), and removes it when the query has ended. A source finds itself in it by its
options, because before its first offset it has no other name that the driver knows.

Two sources of one driver with equal options cannot be told apart. If one of them has state above
it, both count as such.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from counterpoise.spark.channel.channel import Channel
from counterpoise.spark.options import SourceOptions


def put_state(
    home: str | Path, query_id: str, run_id: str, sources: Iterable[SourceOptions]
) -> None:
    """Write down above which sources this run of a query keeps state; none: it keeps none.

    Raises OSError.
    """
    channel = Channel(home, f"query {query_id}")
    # The text has no secret.
    if found := [repr(one) for one in sources]:
        channel.put("state", {"run": run_id, "sources": found})
    else:
        channel.drop("state")


def drop_state(home: str | Path, run_id: str) -> None:
    """This run has ended. A later one of the same query keeps its document."""
    for path in Path(home).glob("*/state.json"):
        said = Channel.read(path)
        if said is not None and said["run"] == run_id:
            path.unlink(missing_ok=True)


def keeps_state(home: str | Path, options: SourceOptions) -> bool:
    """Whether a running query keeps state in Spark above the source with these options."""
    found = (Channel.read(path) for path in Path(home).glob("*/state.json"))
    return any(repr(options) in said["sources"] for said in found if said is not None)
