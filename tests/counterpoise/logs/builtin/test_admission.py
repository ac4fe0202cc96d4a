"""The built-in log knows the size of every message, so admission by bytes is exact."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterpoise.logs.builtin import admission
from counterpoise.logs.builtin.log import PostgresLog
from counterpoise.logs.numbered import fair_shares
from tests.budgets import budget
from tests.log_support import append, asked_of, log_url
from tests.log_support import log as builtin_log

__all__ = ["builtin_log", "log_url"]

# The sizes of all messages; each case uses a range of them.
SIZES = [[3, 0, 7, 1, 1, 9, 2, 2, 40, 1], [1] * 30, [25, 25, 25], [0] * 12]


@pytest.fixture
def filled(builtin_log: PostgresLog) -> PostgresLog:
    if builtin_log.bounds([0]).ends[0] == "0":
        for partition, sizes in enumerate(SIZES):
            values = ["x" * size for size in sizes]
            append(builtin_log, *values, partition=partition, publisher=f"p{partition}")
    return builtin_log


def know_sizes(url: str, known: bool) -> None:
    """Whether partitions know their largest message, from the first position on."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "UPDATE counterpoise_log.ends SET sized_from = CASE WHEN %s THEN 0 ELSE sized_to END",
            [known],
        )


def model(
    starts: dict[int, int], shares: dict[int, int], backlogs: dict[int, int], max_bytes: int
) -> dict[int, int]:
    """The definition, message by message: the lowest level of bytes first."""
    ends = dict(starts)
    level = dict.fromkeys(starts, 0)
    admitted = 0
    while admitted < max_bytes:
        hungry = [n for n in starts if ends[n] < starts[n] + shares[n]]
        if not hungry:
            break
        one = min(hungry, key=lambda n: (level[n], -backlogs[n], n))
        size = SIZES[one][ends[one]]
        ends[one], level[one], admitted = ends[one] + 1, level[one] + size, admitted + size
    return ends


@settings(
    max_examples=budget(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    starts=st.dictionaries(st.integers(0, 3), st.integers(0, 3), min_size=1),
    max_messages=st.sampled_from([1, 5, 17, 10_000]),
    max_bytes=st.integers(1, 150),
    first=st.sampled_from([1, 4, 10_000]),
    knows_sizes=st.booleans(),
)
def test_the_lowest_level_of_bytes_comes_first(
    filled: PostgresLog,
    log_url: str,
    monkeypatch: pytest.MonkeyPatch,
    starts: dict[int, int],
    max_messages: int,
    max_bytes: int,
    first: int,
    knows_sizes: bool,
) -> None:
    monkeypatch.setattr(admission, "FIRST_MESSAGES", first)
    know_sizes(log_url, knows_sizes)
    backlogs = {n: len(SIZES[n]) - start for n, start in starts.items()}
    found = filled.limit(
        {n: str(start) for n, start in starts.items()}, max_messages, max_bytes=max_bytes
    )
    ends = {n: int(end) for n, end in found.items()}
    if first >= 10_000:
        shares = fair_shares(backlogs, max_messages)
        assert ends == model(starts, shares, backlogs, max_bytes)
    # However many messages were examined, too little is admitted only if messages are the limit.
    sizes = [SIZES[n][start : ends[n]] for n, start in starts.items()]
    messages, total = sum(map(len, sizes)), sum(map(sum, sizes))
    last = max((one[-1] for one in sizes if one), default=0)
    assert min(1, sum(backlogs.values())) <= messages <= max_messages
    assert total >= max_bytes or messages == min(max_messages, sum(backlogs.values()))
    assert total < max_bytes + max(map(max, (one for one in sizes if one)), default=last)


@pytest.mark.parametrize("warm", [False, True])
def test_limits_that_the_sizes_seen_do_not_reach_take_sums_alone(
    filled: PostgresLog, log_url: str, monkeypatch: pytest.MonkeyPatch, warm: bool
) -> None:
    know_sizes(log_url, False)
    monkeypatch.setattr(filled._admission, "_bytes_per_message", 1.0 if warm else 0.0)
    bounds, asked = filled.bounds([0, 1]), asked_of(filled, monkeypatch)
    # All fit.
    assert filled.limit({1: "0"}, 20, bounds, max_bytes=21) == {1: "20"}
    assert asked == [admission._MOST, admission._SUM if warm else admission._ADMIT]
    # They seem to fit, and do not: the sum is 30.
    asked.clear()
    assert filled.limit({1: "0"}, 30, bounds, max_bytes=31) == {1: "30"}
    assert filled.limit({0: "8"}, 2, bounds, max_bytes=30) == {0: "9"}
    most = admission._MOST
    assert asked == [most, admission._SUM, most, admission._SUM, admission._ADMIT]
    # They do not even seem to fit.
    asked.clear()
    assert filled.limit({1: "0"}, 30, bounds, max_bytes=20) == {1: "20"}
    assert asked == [most, admission._ADMIT]


@pytest.mark.parametrize("knows_sizes", [False, True])
def test_messages_trimmed_since_the_bounds_were_asked_stay_planned(
    filled: PostgresLog, log_url: str, knows_sizes: bool
) -> None:
    """Reading them raises the loss; leaving them out would block the query for ever."""
    know_sizes(log_url, knows_sizes)
    bounds = filled.bounds([0, 1])
    filled.trim({1: "10"})
    assert filled.limit({1: "0"}, 1000, bounds, max_bytes=1000) == {1: "30"}
    filled.trim({1: "30"})
    assert filled.limit({0: "0", 1: "0"}, 1000, bounds, max_bytes=4)[1] == "30"


def test_how_large_messages_are_at_most_is_a_first_guess_of_their_size(
    filled: PostgresLog, log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was added up before is a better one."""
    monkeypatch.setattr(admission, "FIRST_MESSAGES", 2)
    bounds, asked = filled.bounds([1]), asked_of(filled, monkeypatch)
    for rounds in (3, 1):
        assert filled.limit({1: "0"}, 1000, bounds, max_bytes=1000) == {1: "30"}
        assert asked == [admission._MOST] * rounds
        asked.clear()
    monkeypatch.setattr(filled._admission, "_bytes_per_message", 0.5)
    filled.limit({1: "0"}, 1000, bounds, max_bytes=1000)
    assert filled._admission._bytes_per_message == 0.5
    know_sizes(log_url, False)
    filled.limit({1: "0"}, 1000, bounds, max_bytes=1000)
    assert filled._admission._bytes_per_message == 1.0


def test_no_more_is_looked_at_than_the_sizes_seen_suggest(
    filled: PostgresLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "FIRST_MESSAGES", 2)
    looked: list[int] = []
    weigh = admission.ByteAdmission._weigh

    def watched(
        self: admission.ByteAdmission,
        begins: Mapping[int, int],
        backlogs: Mapping[int, int],
        shares: Mapping[int, int],
        max_bytes: int,
    ) -> tuple[dict[int, int], int]:
        looked.append(sum(shares.values()))
        return weigh(self, begins, backlogs, shares, max_bytes)

    monkeypatch.setattr(admission.ByteAdmission, "_weigh", watched)
    for _ in range(2):
        assert filled.limit({1: "0"}, 1000, max_bytes=10) == {1: "10"}
    assert looked == [2, 8, 30, 15]


def test_so_many_messages_that_sorting_them_would_take_too_long_are_not_all_looked_at(
    filled: PostgresLog, log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call would end at its time, and so would the next one."""
    monkeypatch.setattr(admission, "MOST_SORTED", 5)
    know_sizes(log_url, False)
    assert filled.limit({1: "0", 2: "0"}, 1000, max_bytes=1000) == {1: "3", 2: "2"}
    assert filled.limit({1: "0"}, 1000, max_bytes=3) == {1: "3"}
    # Where their largest is known, or their sum suffices, nothing is sorted.
    assert filled.limit({1: "0"}, 1000, max_bytes=1000) == {1: "30"}
    know_sizes(log_url, True)
    assert filled.limit({1: "0", 2: "0"}, 1000, max_bytes=1000) == {1: "30", 2: "3"}
