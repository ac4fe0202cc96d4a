"""Durations as people write them: `500ms`, `90s`, `10m`, `2h`, `7d`."""

from __future__ import annotations

import re

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_FORM = re.compile(r"([0-9]{1,18})(ms|[smhd])")


def duration_seconds(text: str) -> float | None:
    """The seconds of a duration; None if the text is none. `M` is none: it might mean months.

    It may be longer than any `timedelta`, which raises OverflowError.
    """
    found = _FORM.fullmatch(text)
    return None if found is None else float(int(found[1]) * _UNITS[found[2]])
