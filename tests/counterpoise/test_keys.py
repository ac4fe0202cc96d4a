import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.keys import partition_of


def test_known_keys_go_where_other_programs_send_them():
    # The standard check value of CRC-32.
    assert partition_of("123456789", 2**32) == 0xCBF43926
    assert partition_of("", 7) == 0


@given(st.text(), st.integers(1, 100_000))
def test_every_key_has_a_partition_in_range(key, count):
    assert 0 <= partition_of(key, count) < count


def test_doubling_moves_a_key_only_to_its_partition_or_that_plus_the_old_count():
    for number in range(1000):
        key = f"key-{number}"
        assert partition_of(key, 8) % 4 == partition_of(key, 4)


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_without_partitions_is_refused(count):
    with pytest.raises(ValueError, match="at least 1"):
        partition_of("key", count)
