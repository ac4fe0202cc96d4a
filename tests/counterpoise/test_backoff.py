"""The pauses between attempts."""

from hypothesis import given
from hypothesis import strategies as st

from counterpoise.backoff import Backoff, Pauses
from counterpoise.errors import ServiceUnavailable
from counterpoise.flow.programs import pause_after


def test_each_pause_is_twice_the_one_before_up_to_the_longest() -> None:
    pauses = Pauses(Backoff(0.1, 1.0))
    assert [round(pauses.failed(), 6) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert pauses.failures == 6
    pauses.succeeded()
    assert pauses.failed() == 0.1


@given(st.integers(1, 10**9), st.floats(0, 1, exclude_max=True))
def test_chance_spreads_a_pause_over_its_upper_half(failures: int, chance: float) -> None:
    backoff = Backoff(0.1, 5.0)
    whole = backoff.after(failures)
    assert whole / 2 <= backoff.after(failures, chance) <= whole <= 5.0
    assert backoff.after(failures, 0.0) == whole / 2


def test_a_first_pause_above_the_longest_is_cut() -> None:
    assert Backoff(3.0, 2.0).after(1) == 2.0
    assert Backoff(0.0, 2.0).after(50) == 0.0


def test_a_flow_waits_as_long_as_the_service_asks_and_not_beyond_its_own_limit() -> None:
    asks = ServiceUnavailable("over its rate", retry_after=7.0)
    assert pause_after(1, 0.0, asks, longest=30.0) == 7.0
    assert 7.0 < pause_after(1, 0.9, asks, longest=30.0) < 10.5
    assert pause_after(1, 0.0, asks, longest=2.0) == 2.0
