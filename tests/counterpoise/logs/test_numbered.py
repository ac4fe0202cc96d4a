from hypothesis import given
from hypothesis import strategies as st

from counterpoise.logs.numbered import fair_shares

backlogs = st.dictionaries(st.integers(0, 50), st.integers(0, 200), max_size=12)


@given(backlogs, st.integers(0, 1000))
def test_shares_use_all_they_may_and_no_more(backlogs, most):
    shares = fair_shares(backlogs, most)
    assert shares.keys() == backlogs.keys()
    assert all(0 <= shares[partition] <= backlogs[partition] for partition in backlogs)
    assert sum(shares.values()) == min(most, sum(backlogs.values()))


@given(backlogs, st.integers(0, 1000))
def test_no_share_is_more_than_one_above_another_with_messages_left(backlogs, most):
    shares = fair_shares(backlogs, most)
    for hungry in backlogs:
        if shares[hungry] < backlogs[hungry]:
            assert max(shares.values()) <= shares[hungry] + 1


def test_the_remainder_goes_to_the_longest_backlog_so_none_starves():
    waiting = {0: 5, 1: 5, 2: 5}
    served = []
    for _ in range(15):
        (partition,) = [p for p, share in fair_shares(waiting, 1).items() if share]
        waiting[partition] -= 1
        served.append(partition)
    assert served[:6] == [0, 1, 2, 0, 1, 2]
