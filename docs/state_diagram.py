"""Draws docs/state-diagram.md from the transition tables; run it when they have changed."""

from pathlib import Path

from broker.core.transitions import (
    LIFE_TRANSITIONS,
    PARTITION_TRANSITIONS,
    QUEUE_TRANSITIONS,
    diagram,
)

PAGE = Path(__file__).with_name("state-diagram.md")

TEXT = """\
# States

Drawn from the tables in `broker/core/transitions.py`, which are all that may happen: a pair of
state and event that is not in them is refused. `.venv/bin/python docs/state_diagram.py` writes
this page, and a test holds it to the tables.

## A queue (`rebalance_status`)

```mermaid
{queue}```

*Holddown* is the quiet wait between a trigger and the rebalance, so that consumers that come and go
together are one rebalance and not many. It settles when the number of flows is again what it was
and nothing has to move. What starts which is in
[the contract](protocol.md#what-triggers-what).

## A partition

```mermaid
{partition}```

While a partition is *warming*, its owner goes on as if nothing were happening, and its successor
restores the state that it needs. *Revoking* is the only state in which a partition pauses: its
owner finishes what is outstanding and releases it, or its deadline passes. Every grant raises the
epoch.

## A partition in a resize

```mermaid
{life}```

This goes beside the states above: a retiring partition is owned, warming or revoking like any
other, until its owner has drained it to its end.
"""


def page() -> str:
    """The whole page."""
    return TEXT.format(
        queue=diagram(QUEUE_TRANSITIONS),
        partition=diagram(PARTITION_TRANSITIONS),
        life=diagram(LIFE_TRANSITIONS),
    )


if __name__ == "__main__":
    PAGE.write_text(page())
