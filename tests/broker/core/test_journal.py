"""Undoing changes, each kind and in every order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from broker.core.structures import Journal


def test_every_kind_of_change_is_taken_back() -> None:
    journal, thing = Journal(), SimpleNamespace(a=1, b=2, map={"x": 1}, members={1})
    mark = journal.mark()
    journal.set(thing, a=10)
    journal.changed(thing, _put, 10, 2)
    _put(thing, 20, 30)
    journal.put(thing.map, "x", 2)
    journal.put(thing.map, "y", 3)
    journal.drop(thing.map, "x")
    journal.drop(thing.map, "not there")
    journal.add(thing.members, 2)
    journal.add(thing.members, 2)
    journal.discard(thing.members, 1)
    journal.discard(thing.members, 7)
    assert (thing.a, thing.b, thing.map, thing.members) == (20, 30, {"y": 3}, {2})
    journal.undo(mark)
    assert (thing.a, thing.b, thing.map, thing.members) == (1, 2, {"x": 1}, {1})


def test_changes_before_the_mark_stay() -> None:
    journal, thing = Journal(), SimpleNamespace(a=1)
    journal.set(thing, a=2)
    mark = journal.mark()
    journal.set(thing, a=3)
    journal.undo(mark)
    assert thing.a == 2


def test_custom_undo_steps_run_in_reverse_order() -> None:
    journal, undone = Journal(), list[Any]()
    journal.did(undone.append, "first")
    journal.did(undone.append, "second")
    journal.undo(0)
    assert undone == ["second", "first"]


def test_it_names_the_changed_objects() -> None:
    journal = Journal()
    things = [SimpleNamespace(a=1) for _ in range(4)]
    journal.set(things[0], a=2)
    mark = journal.mark()
    journal.set(things[1], a=2)
    journal.changed(things[2], _put, 1, 2)
    journal.note(things[3])
    journal.add(set(), 1)
    assert list(journal.changed_since(mark)) == things[1:]


def test_forgotten_changes_cannot_be_undone() -> None:
    journal, thing = Journal(), SimpleNamespace(a=1)
    journal.set(thing, a=2)
    journal.forget()
    journal.undo(0)
    assert thing.a == 2
    assert journal.mark() == 0


def _put(thing: SimpleNamespace, a: int, b: int) -> None:
    thing.a, thing.b = a, b
