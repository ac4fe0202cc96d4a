"""Which checkpoints fit a queue and its log."""

import pytest

from counterpoise.spark.errors import InvalidOffset
from counterpoise.spark.offsets import Offset, Place


def test_a_log_made_anew_does_not_fit_an_old_checkpoint() -> None:
    Place("q", "log-2").check(Offset("q"))
    with pytest.raises(InvalidOffset, match="made anew"):
        Place("q", "log-2").check(Offset("q", {}, "me", "log-1"))


def test_a_recreated_queue_on_the_old_log_does_not_fit_an_old_checkpoint() -> None:
    old = Offset("q", {}, "me", "log-1", queue_id="first")
    Place("q", "log-1", "first").check(old)
    Place("q", "log-1").check(old)
    Place("q", "log-1", "second").check(Offset("q", {}, "me", "log-1"))
    with pytest.raises(InvalidOffset, match="queue 'q' that was deleted"):
        Place("q", "log-1", "second").check(old)
