"""Taking back changes of a queue.

Everything that changes a queue goes through its journal, which can undo back to any mark. Two
places rely on it: `decide` takes back a decision that fails or changes nothing, and the coordinator
takes back a turn whose commit failed. Undoing costs as much as the changes did, whatever the size
of the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

_Set: TypeAlias = set[Any]  # within the class, `set` is its method


class Journal:
    """The changes since the last `forget`, newest last."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        # (owner, attribute, old value), (owner, undo, arguments) or (undo, None, arguments).
        self._entries: list[tuple[Any, str | Callable[..., object] | None, Any]] = []

    def set(self, owner: Any, attribute: str, value: Any) -> None:
        """Sets an attribute, remembering the old value."""
        self._entries.append((owner, attribute, getattr(owner, attribute)))
        setattr(owner, attribute, value)

    def changed(self, owner: Any, undo: Callable[..., object], *arguments: Any) -> None:
        """Remembers that `owner` was changed otherwise, which `undo(owner, *arguments)` undoes."""
        self._entries.append((owner, undo, arguments))

    def note(self, owner: Any) -> None:
        """Remembers that something kept beside `owner` changes, so that `changed_since` names
        it.
        """
        self.changed(owner, _nothing)

    def did(self, undo: Callable[..., object], *arguments: Any) -> None:
        """Remembers how to undo a change that was made otherwise."""
        self._entries.append((undo, None, arguments))

    def put(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        """Sets a key of a dictionary."""
        if key in mapping:
            self.did(mapping.__setitem__, key, mapping[key])
        else:
            self.did(mapping.pop, key)
        mapping[key] = value

    def drop(self, mapping: dict[Any, Any], key: Any) -> None:
        """Removes a key of a dictionary; nothing if it is not there.

        Undoing puts the key at the end of the dictionary: no caller may depend on the order.
        """
        if key in mapping:
            self.did(mapping.__setitem__, key, mapping.pop(key))

    def add(self, members: _Set, member: Any) -> None:
        """Adds to a set."""
        if member not in members:
            members.add(member)
            self.did(members.discard, member)

    def discard(self, members: _Set, member: Any) -> None:
        """Removes from a set."""
        if member in members:
            members.discard(member)
            self.did(members.add, member)

    def mark(self) -> int:
        """The present moment, for `undo` and `changed_since`."""
        return len(self._entries)

    def undo(self, mark: int) -> None:
        """Takes back every change since `mark`."""
        entries = self._entries
        while len(entries) > mark:
            target, how, value = entries.pop()
            if how is None:
                target(*value)
            elif isinstance(how, str):
                setattr(target, how, value)
            else:
                how(target, *value)

    def changed_since(self, mark: int) -> Iterator[Any]:
        """The objects that were changed or noted since `mark`; with repetitions."""
        for target, how, _ in self._entries[mark:]:
            if how is not None:
                yield target

    def forget(self) -> None:
        """Makes all changes final."""
        self._entries.clear()


def _nothing(_owner: Any) -> None:
    """Undoes what was only noted."""
