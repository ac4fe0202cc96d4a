"""What the service forgets now and then, and what it keeps."""

from __future__ import annotations

import psycopg
import pytest

from broker.calls.views import QueueSpec
from broker.service import Broker
from tests.service import settings_for


@pytest.mark.parametrize(("days", "kept"), [(3.0, True), (8.0, False)])
async def test_flows_that_left_are_named_as_long_as_the_history(
    migrated_url: str, days: float, kept: bool
) -> None:
    """The history is kept for 7 days."""
    broker = Broker(settings_for(migrated_url))
    await broker.start()
    try:
        await broker.queues.create(QueueSpec(name="flights", partition_count=1))
        await broker.flows.bind("flights", "etl-1", None, 10.0, False)
        with psycopg.connect(migrated_url) as connection:
            connection.execute(
                "UPDATE counterpoise.flows SET reason = 'unbound', "
                "left_at = extract(epoch FROM clock_timestamp()) - %s * 86400",
                (days,),
            )
        await broker.upkeep()
        with psycopg.connect(migrated_url) as connection:
            names = connection.execute("SELECT client_name FROM counterpoise.flows").fetchall()
    finally:
        await broker.stop()
    assert names == ([("etl-1",)] if kept else [])
