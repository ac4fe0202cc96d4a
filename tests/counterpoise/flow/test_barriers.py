"""Where a consumer stops for an ordered resize, and when it says that a cut is reached."""

from dataclasses import replace

import pytest

from counterpoise.flow.barriers import stop_of, within
from counterpoise.flow.ledger import Ledger
from counterpoise.flow.view import Owned
from counterpoise.logs import Bounds
from counterpoise.wire import CommitItem

OWNED = Owned(3, 1, "owned", "0", "initial", resize=1)
WAITS = replace(OWNED, cut="10", waits_for=(1,), reached_cut=True)
CUTS = {3: "20"}


@pytest.mark.parametrize(
    ("owned", "resize", "stop"),
    [
        (OWNED, 1, None),
        (OWNED, 2, "20"),  # the queue has not said yet what the resize means
        (WAITS, 1, "10"),
        (WAITS, 2, "10"),  # both: the earlier cut counts
        (replace(WAITS, waits_for=()), 1, None),  # it waits for nothing
        (replace(OWNED, resize=None), 2, None),  # resizes are not ordered
        (replace(OWNED, resize=3), 2, None),  # the log's answer is older than the view
    ],
)
def test_a_partition_stops(owned, resize, stop):
    assert stop_of(owned, resize, CUTS) == stop


def ends(owned, position, end="100", resize=1):
    bounds = Bounds(8, "log", {3: "0", 4: "0"}, {3: end, 4: "50"}, resize=resize, cuts=CUTS)
    found = within(bounds, {3: owned}, {3: position})
    assert found.ends[4] == "50"
    return found.ends[3]


def test_what_is_read_ends_at_the_stop():
    assert ends(WAITS, "0") == "10"
    assert ends(WAITS, None) == "10"
    assert ends(WAITS, "9") == "10"  # by the log's order, and not as texts
    assert ends(WAITS, "0", end="7") == "7"
    assert ends(OWNED, "0") == "100"
    assert ends(OWNED, "0", resize=2) == "20"


def test_a_partition_that_is_past_its_cut_reads_nothing():
    assert ends(WAITS, "10") == "10"
    assert ends(WAITS, "15") == "15"
    assert ends(WAITS, "115") == "100"  # the log is behind, which the reader finds


# ------------------------------------------------------------------ the ledger


def ledger_of(owned):
    ledger = Ledger()
    ledger.follow({3: owned})
    return ledger


def test_the_commit_that_reaches_the_cut_says_so():
    ledger = ledger_of(replace(OWNED, cut="10"))
    ledger.done(3, 1, "9")
    assert ledger.commits() == (CommitItem(3, 1, "9"),)
    ledger.done(3, 1, "10")
    assert ledger.commits() == (CommitItem(3, 1, "10", reached_cut=True),)


def test_a_cut_that_was_reached_before_it_was_known_is_said_without_new_messages():
    owned = replace(OWNED, position="10")
    ledger = ledger_of(owned)
    assert ledger.commits() == ()
    ledger.follow({3: replace(owned, cut="10")})
    due = ledger.commits()
    assert due == (CommitItem(3, 1, "10", reached_cut=True),)
    ledger.answered(due[0], "ok")
    assert ledger.commits() == ()
    # The position that was committed is in the view at once; the service has made no view yet.
    assert not ledger.follow({3: replace(owned, cut="10")}).moved
    assert ledger.commits() == ()
    # Its next view still does not say it: another replica may not have known the cut.
    assert ledger.follow({3: replace(owned, cut="10", revision=2)}).moved
    assert ledger.commits() == due
    ledger.follow({3: replace(owned, cut="10", reached_cut=True, revision=3)})
    assert ledger.commits() == ()


def test_a_release_says_it_too():
    ledger = ledger_of(replace(OWNED, state="revoking", position="12", cut="10"))
    (release,) = ledger.releases()
    assert release.reached_cut


def test_a_view_in_which_a_barrier_may_have_gone_is_noticed():
    ledger = ledger_of(WAITS)
    assert ledger.follow({3: replace(WAITS, waits_for=(), cut=None, revision=2)}).moved
    other = ledger_of(replace(OWNED, resize=None))
    assert not other.follow({3: replace(OWNED, resize=None, position="4", revision=2)}).moved
