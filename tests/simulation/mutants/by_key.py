"""Bugs in key order, and in what is done above a position."""

from __future__ import annotations

import dataclasses
from collections import deque

from msgspec.structs import replace

from broker.replica import transaction
from counterpoise.consumer.key_order import KeyWindow
from counterpoise.flow import core, view
from counterpoise.wire import Update
from tests.simulation.mutants.mutant import Changes


def release_forgets_what_is_above() -> Changes:
    """What a release says of work above its position is not stored."""
    real = transaction._write_of

    def write_of(item, flow_id, seq):
        return dataclasses.replace(real(item, flow_id, seq), done_above=None)

    return [(transaction, "_write_of", write_of)]


def next_owner_does_not_see_it() -> Changes:
    """A client reads a view as if nothing was done above positions."""

    def view_of(update: Update, now, known):
        partitions = tuple(replace(one, done_above=None) for one in update.partitions)
        return view.view_of(replace(update, partitions=partitions), now, known)

    return [(core, "view_of", view_of)]


def position_of_the_last_done() -> Changes:
    """The position is behind the message that is done, whatever is before it in work."""
    real = KeyWindow.done

    def done(self, begin, end):
        self.position = max(real(self, begin, end), end)
        return self.above.take(self.position)

    return [(KeyWindow, "done", done)]


def two_of_a_key_at_once() -> Changes:
    """The next message of a key does not wait for the one before."""

    def line_up(self, one):
        self._behind.setdefault(one.message.key, deque())
        self._make_ready(one)

    def finish(self, one):
        pass

    return [(KeyWindow, "_line_up", line_up), (KeyWindow, "finish", finish)]
