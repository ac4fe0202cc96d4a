from counterpoise.spark.run.pace import Pace


def cycle(pace: Pace, seconds: float, at: float = 0.0) -> None:
    pace.planned(at)
    pace.asked(at + seconds)


def test_the_first_batch_is_not_measured() -> None:
    pace = Pace()
    cycle(pace, 60)
    assert pace.cycle_seconds is None
    cycle(pace, 2)
    assert pace.cycle_seconds == 2


def test_a_handoff_time_below_two_cycles_is_warned_of_once() -> None:
    pace = Pace()
    cycle(pace, 60)
    cycle(pace, 2)
    assert pace.warning("flights", 4) is None
    warning = pace.warning("flights", 3)
    assert warning is not None
    assert "max_handoff_time is 3 s" in warning
    # Twice the longest cycle and a quarter of it, in whole seconds, to be typed as it is.
    assert "counterpoise queues change flights --max-handoff-time 5)" in warning
    assert pace.warning("flights", pace.needed_seconds) is None
    assert pace.warning("flights", 3) is None
    cycle(pace, 5)
    assert pace.warning("flights", 3) is not None


def test_without_measurements_there_is_no_warning() -> None:
    pace = Pace()
    pace.asked(3)
    assert pace.warning("flights", 1) is None
    cycle(pace, 9)
    cycle(pace, 9)
    assert pace.warning("flights", None) is None
