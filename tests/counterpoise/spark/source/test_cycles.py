from counterpoise.spark.source.cycles import BatchLimit, Cycles


def cycle(cycles: Cycles, seconds: float, at: float = 0.0) -> None:
    cycles.planned(at)
    cycles.done(at + seconds)


def test_the_first_batch_is_not_measured() -> None:
    cycles = Cycles()
    cycle(cycles, 60)
    assert cycles.cycle_seconds is None
    cycle(cycles, 2)
    assert cycles.cycle_seconds == 2


def test_a_handoff_time_below_two_cycles_is_warned_of_once() -> None:
    cycles = Cycles()
    cycle(cycles, 60)
    cycle(cycles, 2)
    assert cycles.warning("flights", 4) is None
    warning = cycles.warning("flights", 3)
    assert warning is not None
    assert "max_handoff_time is 3 s" in warning
    # Twice the longest cycle and a quarter of it, in whole seconds.
    assert "counterpoise queues change flights --max-handoff-time 5)" in warning
    assert cycles.warning("flights", cycles.needed_seconds) is None
    assert cycles.warning("flights", 3) is None
    cycle(cycles, 5)
    assert cycles.warning("flights", 3) is not None


def test_without_measurements_there_is_no_warning() -> None:
    cycles = Cycles()
    cycles.done(3)
    assert cycles.warning("flights", 1) is None
    cycle(cycles, 9)
    cycle(cycles, 9)
    assert cycles.warning("flights", None) is None


def test_the_limit_learns_from_each_cycle_but_the_first() -> None:
    limit = BatchLimit(100, None, bytes_follow=False)
    cycles = Cycles(limit)
    sizes = []
    for seconds, left_behind in [(0.5, True), (0.5, True), (0.5, False), (0.5, True), (9, True)]:
        cycles.planned(0, messages=limit.messages, left_behind=left_behind)
        cycles.done(seconds)
        cycles.done(seconds + 60)  # with nothing in flight
        sizes.append(limit.messages)
    assert sizes == [100, 200, 200, 400, 200]
