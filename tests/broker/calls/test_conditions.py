"""The conditions of a queue, as they are listed."""

from broker.calls.conditions import ReportedCondition
from broker.testing.loop import virtual
from tests.broker.shell import World, spec


@virtual
async def test_those_of_the_service_come_first_and_those_of_partitions_last() -> None:
    one = await World().replica()
    await one.create_queue(spec())
    flow = await one.calls.bound_flows.of("orders", await one.join("orders", "first"))
    reported = [
        ReportedCondition("quarantined", "t", 1, 1),
        ReportedCondition("log_away", "t"),
        ReportedCondition("quarantined", "t", 0, 1),
    ]
    await one.calls.conditions.report(flow, 1, reported)
    await one.calls.pins.pin("orders", 3, "nobody")
    shown = (await one.calls.conditions.of_queue("orders", 10)).items
    assert [(held.kind, held.partition) for held in shown] == [
        ("pin_unmet", None),
        ("log_away", None),
        ("quarantined", 0),
        ("quarantined", 1),
    ]
    assert (await one.calls.conditions.of_queue("orders", 2)).items == shown[:2]
