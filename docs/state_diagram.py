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

The diagrams are drawn from the tables in `broker/core/transitions.py`. They are complete: a
pair of state and event that they do not list is refused. `.venv/bin/python docs/state_diagram.py`
writes this page, and a test compares it with the tables.

## A queue (`rebalance_status`)

```mermaid
{queue}```

[The contract](protocol.md#what-triggers-what) lists the triggers; a holddown settles by its rule 7.

## A partition

```mermaid
{partition}```

*Revoking* is the only state in which a partition pauses ([one handoff](protocol.md#one-handoff)).

## A partition in a resize

```mermaid
{life}```

This goes beside the states above: a *retiring* partition is owned, warming or revoking like any
other, until it has been drained.
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
