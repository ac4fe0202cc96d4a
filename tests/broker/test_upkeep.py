"""What the service forgets now and then, and what it keeps."""

from __future__ import annotations

import psycopg
import pytest

from broker.calls.views import QueueSpec
from broker.service import Broker
from tests.service import settings_for


@pytest.mark.parametrize(
    ("days", "history_days", "kept"),
    [(3.0, 7.0, True), (8.0, 7.0, False), (0.9, 0.5, True), (1.1, 0.5, False)],
)
async def test_flows_that_left_are_known_as_long_as_the_history_and_a_day(
    migrated_url: str, days: float, history_days: float, kept: bool
) -> None:
    """Then their calls get 410 with the reason, and the history names them."""
    broker = Broker(settings_for(migrated_url, history_days=history_days))
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
