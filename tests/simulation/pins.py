"""Pins, from facts alone: where partitions must be, and what may make or end a pin.

A pin is a value of the queue's row: by partition, of a group the first, with the name of the
client, its begin and its reason. No run with pins has maxima.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.judge.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.account import Account, Transaction

# Partitions that take no part in the balance.
_APART = ("waiting", "finished", "removed")
_OVER = ("finished", "removed")


def homes(known: Account) -> dict[int, str]:
    """The flow at which each partition must be whose pin is in force: of the flows of that name
    that take part the earliest bound."""
    pins = known.queue.get("pins") or {}
    if not pins or known.queue["access_type"] == "exclusive":
        return {}
    named: dict[str, str] = {}
    for row in sorted(known.flows.values(), key=lambda row: row.bind_number):
        if not row.draining and row.held_until is None:
            named.setdefault(row.client_name, row.id)
    found = {}
    for text, (client_name, _, _) in pins.items():
        row = known.partitions.get(int(text))
        if row is None or row.retiring or row.state in _APART or client_name not in named:
            continue
        found[int(text)] = named[client_name]
    return found


def are_met(known: Account) -> bool:
    """Whether every partition is at its home."""
    return all(known.partitions[number].owner == home for number, home in homes(known).items())


def check_changed(known: Account, tx: Transaction, old: Mapping[str, Any]) -> None:
    """A pin comes and goes for a reason. The reasons of a transaction with several decisions are
    those of any of them."""
    before, after = old.get("pins") or {}, known.queue.get("pins") or {}
    ended = {row.number for row in tx.partitions if row.state in _OVER}.union(tx.removed)
    for name, pin in before.items():
        row = known.partitions.get(int(name))
        over = row is None or row.state in _OVER or known.asked.discard(int(name))
        if name not in after and not (over or known.asked.pause("unpin", name)):
            raise Violation(10, f"the pin of {name} is lost")
        if name in after and after[name] != pin:
            _check_made(known, ended, name)
    for name in after.keys() - before.keys():
        _check_made(known, ended, name)


def _check_made(known: Account, ended: set[int], name: str) -> None:
    inherited = not ended.isdisjoint(known.order.parents.get(int(name), ()))
    if not (inherited or known.asked.pause("pin", name)):
        raise Violation(10, f"{name} was pinned, and nobody asked for it")
