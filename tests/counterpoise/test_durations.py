import pytest

from counterpoise.durations import duration_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("90s", 90), ("15m", 900), ("2h", 7200), ("7d", 604_800), ("0s", 0)],
)
def test_a_duration_is_a_number_with_its_unit(text: str, seconds: float) -> None:
    assert duration_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "s", "1.5h", "12M", "-1s", " 1s", "1 s", "1w", "1s\n", "١s"]
)
def test_what_is_no_duration(text: str) -> None:
    assert duration_seconds(text) is None


def test_a_duration_of_any_length_has_seconds() -> None:
    assert duration_seconds("9" * 18 + "d") == pytest.approx(8.64e22)
