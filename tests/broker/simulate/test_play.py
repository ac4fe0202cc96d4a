"""A scaling plan in virtual time: what it costs is what the contract says."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.model import Settings
from broker.simulate.drawing import MOST_TIMES, times
from broker.simulate.play import ConsumerModel, Phase, Played, play
from broker.simulate.report import advice, document, table
from broker.simulate.scenarios import SCENARIOS, Step, named, read

QUICK = ConsumerModel(finish_seconds=0.5)


def played(
    *steps: Step, partitions: int = 100, consumers: ConsumerModel = QUICK, **settings: Any
) -> Played:
    chosen = {"rebalance_delay": 5.0, "max_handoff_time": 3.0, "log": "builtin:q", **settings}
    return play(Settings(partition_count=partitions, **chosen), steps, consumers)


def test_a_consumer_more_takes_its_share_and_no_more() -> None:
    first, second = played(Step(0, "bind", 4), Step(60, "bind", 1)).phases
    assert (first.handoffs, first.granted, first.balanced_after) == (0, 100, 5.0)
    assert (second.handoffs, second.forced, second.granted) == (20, 0, 0)
    assert second.balanced_after is not None
    assert 5.25 <= second.balanced_after <= 5.75
    assert all(0.25 <= pause <= 0.75 for pause in second.pauses)


def test_consumers_that_are_slower_than_the_deadline_are_forced() -> None:
    slow = ConsumerModel(finish_seconds=10.0)
    result = played(Step(0, "bind", 1), Step(60, "bind", 1), consumers=slow)
    moved = result.phases[1]
    assert (moved.handoffs, moved.forced) == (50, 50)
    assert set(moved.pauses) == {3.0}
    (said,) = advice(result, slow)
    assert "50 of 50 handoffs are forced" in said
    assert "With 15 s or more none is" in said
    fitting = played(Step(0, "bind", 1), Step(60, "bind", 1), consumers=slow, max_handoff_time=15.0)
    assert fitting.phases[1].forced == 0


def test_handoffs_that_a_crash_forces_are_no_advice_on_the_deadline() -> None:
    slow = ConsumerModel(finish_seconds=2.0)
    plan = (Step(0, "bind", 2), Step(60, "bind", 1), Step(65.05, "crash", 1))
    assert list(advice(played(*plan, consumers=slow), slow)) == [
        "17 of 33 handoffs are forced: their owners had crashed."
    ]


def test_the_advice_on_the_holddown_is_right() -> None:
    """With the delay that it names nothing is handed off in a rolling restart."""
    plan = named("rolling-restart", 20, 8.0)
    short = played(*plan)
    assert sum(phase.handoffs for phase in short.phases) > 0
    assert any("more than 8 s" in said for said in advice(short, QUICK))
    long = played(*plan, rebalance_delay=8.1)
    assert sum(phase.handoffs for phase in long.phases) == 0
    assert list(advice(long, QUICK)) == ["No partition is taken from a consumer that works."]


def test_the_silence_of_a_crashed_consumer_is_part_of_the_pause() -> None:
    result = played(Step(0, "bind", 4), Step(60, "crash", 1))
    assert set(result.phases[1].pauses) == {15.0}, "a lease of 10 s and a holddown of 5 s"
    assert result.phases[1].balanced_after == 15.0
    soon = played(Step(0, "bind", 4), Step(60, "crash", 1), Step(65, "bind", 1))
    assert soon.phases[1].balanced_after is None, "its lease has not ended yet"


def test_a_standby_takes_the_place_of_a_crashed_consumer_when_its_lease_ends() -> None:
    result = played(Step(0, "bind", 104), Step(60, "crash", 1))
    assert result.phases[1].pauses == [10.0]
    assert result.phases[1].balanced_after == 10.0


def test_drained_consumers_leave_when_they_own_nothing() -> None:
    result = played(Step(0, "bind", 4), Step(60, "drain", 2))
    assert result.phases[1].handoffs == 50
    assert result.samples[-1].flows == 2
    assert max(sample.flows for sample in result.samples) == 4


def test_warm_ups_delay_the_handoff_and_not_the_reading() -> None:
    """Also when warm-ups change their successors, because more consumers come."""
    warm = ConsumerModel(finish_seconds=0.5, warmup_seconds=20.0)
    result = played(Step(0, "bind", 2), Step(60, "bind", 8, over=30.0), consumers=warm)
    last = result.phases[1]
    assert last.forced == 0
    assert max(last.pauses) <= 0.75
    assert last.balanced_after is not None
    assert 20.0 < last.balanced_after < 100.0


def test_a_queue_is_resized_both_ways() -> None:
    result = played(Step(0, "bind", 4), Step(60, "resize", 200), Step(120, "resize", 50))
    grown, shrunk = result.phases[1:]
    assert (grown.granted, grown.handoffs) == (100, 0)
    assert (result.settings.partition_count, result.partition_count) == (100, 50)
    assert shrunk.balanced_after is not None
    assert result.samples[-1].paused == 0


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("flows", [1, 2, 7, 40])
def test_every_scenario_ends_balanced(name: str, flows: int) -> None:
    result = played(*named(name, flows, 20.0))
    last = result.samples[-1]
    assert (last.status, last.paused, last.warming) == ("Ready", 0, 0)
    assert result.seconds < 3600
    assert len(table(result).splitlines()) == len(result.phases) + 1


def test_the_same_seed_gives_the_same_play() -> None:
    plan = named("autoscale", 10, 20.0)
    numbers = [document(played(*plan), QUICK) for _ in range(2)]
    assert numbers[0] == numbers[1]
    other = ConsumerModel(seed=2)
    assert document(played(*plan, consumers=other), other)["steps"] != numbers[0]["steps"]


def test_more_consumers_may_be_told_to_leave_than_there_are() -> None:
    result = played(
        *(
            Step(float(place), do, 5)
            for place, do in enumerate(("unbind", "drain", "crash", "bind", "crash", "unbind"))
        )
    )
    assert isinstance(result.phases[-1], Phase)


def test_a_file_has_steps_in_any_order() -> None:
    text = '[{"at": 60, "do": "drain", "count": 2, "over": 5}, {"do": "bind", "count": 3}]'
    assert read(text) == (Step(0.0, "bind", 3), Step(60.0, "drain", 2, 5.0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no", "not JSON"),
        ("{}", "array of steps"),
        ("[]", "array of steps"),
        ("[1]", "step 1 is not an object"),
        ('[{"do": "dance", "count": 1}]', "step 1: do is none of"),
        ('[{"do": "bind"}]', "step 1: count"),
        ('[{"do": "bind", "count": true}]', "step 1: count"),
        ('[{"do": "resize", "count": 4097}]', "step 1: count .* 1 to 4,096"),
        ('[{"do": "bind", "count": 1, "at": -1}]', "step 1: at"),
        ('[{"do": "bind", "count": 1, "over": NaN}]', "step 1: over"),
        ('[{"do": "bind", "count": 1, "when": 1}]', "unknown fields: when"),
    ],
)
def test_a_file_that_is_no_scenario_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(text)


def test_partitions_of_a_crashed_consumer_are_unread_from_the_crash_on() -> None:
    """As long as its lease runs, too, and until others have them."""
    result = played(Step(0, "bind", 4), Step(60, "crash", 1))
    unread = [(sample.at, sample.paused) for sample in result.samples if sample.at >= 60]
    assert unread == [(60.0, 25), (70.0, 25), (75.0, 0)]


def test_a_crash_amid_a_handoff_is_counted_from_the_crash() -> None:
    """Of what it gives, which ends by force, and of what it keeps."""
    slow = ConsumerModel(finish_seconds=10.0)
    plan = Step(0, "bind", 1), Step(60, "bind", 1), Step(64, "crash", 1)
    assert set(played(*plan, consumers=slow).phases[2].pauses) == {4.0, 15.0}


@pytest.mark.parametrize("end", [1.0, 7.3, 75.0, 181.4, 900.0, 5000.0, 90000.0])
def test_the_times_of_the_picture_are_round(end: float) -> None:
    found = times(end)
    assert 2 <= len(found) <= MOST_TIMES
    assert found[-1] <= end
    digits = [str(at).rstrip("0") for at in found if at % 60]
    assert all(len(digit) <= 2 for digit in digits), found
