"""Immutable snapshots of what a flow owns and warms up, and the differences between them.

Every update is complete (level-triggered), so events are the differences between the last view and
the new one. A partition is *held* under an epoch, and at most one flow ever holds a
(partition, epoch) (the contract, *What must never happen*, 1). Hence:

- in the new view under an epoch that the old one did not have: granted. If the old view had the
  partition under another epoch, that epoch was lost before: the partition was granted to this flow
  again, and another flow may have held it in between;
- in the old view and not in the new: lost;
- now `revoking` or `retiring`, and not so before under this epoch: revoking, retiring.

Losses come before grants, both in the order of partition numbers. So a program that handles the
notices one by one never holds a partition under two epochs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import TypeAlias

from counterpoise.wire import Pause, Update, UpdatePartition

GrantId: TypeAlias = tuple[int, int]
"""Partition and epoch: granted to one flow at most, ever."""


@dataclass(frozen=True)
class Owned:
    """A partition that this flow owns; the contract, *FlowChangeUpdate*, has its fields.

    `position`: the last committed one, the next message to read; None: the queue's `start`.
    `deadline` (of a revoke): in seconds of `lease_time`. `paused`: an administrator holds it still.
    Begin no message of it and keep it; commits and releases are as ever. `done_above`: what is done
    above the position. `revision`: that of the update that said so. `resize`: the number of the
    log's last resize that the view knows; None: resizes are not ordered. Without a `cut` nothing
    waits.
    """

    partition: int
    epoch: int
    state: str
    position: str | None
    handed_over: str | None
    deadline: float | None = None
    resize: int | None = None
    cut: str | None = None
    reached_cut: bool = False
    waits_for: tuple[int, ...] = ()
    key: str | None = None
    parents: tuple[str, ...] = ()
    revision: int = 0
    paused: Pause | None = None
    done_above: str | None = None


@dataclass(frozen=True)
class Warming:
    """A partition that this flow will own: restore its state, then say `ready`.

    `epoch` and `position` are those of the present owner, which keeps working meanwhile.
    """

    partition: int
    epoch: int
    position: str | None
    deadline: float | None = None


@dataclass(frozen=True)
class View:
    """The content of one update, with deadlines by the own clock."""

    revision: int
    active: bool
    draining: bool
    partitions: Mapping[int, Owned]
    warming: Mapping[int, Warming]
    # By the service's clock; only shown.
    held_until: datetime | None = None


NOTHING = View(-1, False, False, MappingProxyType({}), MappingProxyType({}))


@dataclass(frozen=True)
class Granted:
    """The flow owns the partition from now on; work may begin at its position."""

    owned: Owned


@dataclass(frozen=True)
class Revoking:
    """Take no new messages of it, finish outstanding ones, release before the deadline."""

    owned: Owned


@dataclass(frozen=True)
class Retiring:
    """The partition is being removed: drain it to its end, then release it as finished."""

    owned: Owned


@dataclass(frozen=True)
class Lost:
    """The flow has lost the partition: further commits under this epoch are refused."""

    owned: Owned


@dataclass(frozen=True)
class WarmingStarted:
    """Restore the state of this partition, then say `ready`."""

    warming: Warming


@dataclass(frozen=True)
class WarmingEnded:
    """The handoff to this flow was called off; the restored state is not needed."""

    warming: Warming


Notice: TypeAlias = Granted | Revoking | Retiring | Lost | WarmingStarted | WarmingEnded


def view_of(update: Update, now: float, known: Mapping[GrantId, str]) -> View:
    """The view that `update`, received at `now` (`lease_time`), describes.

    `known` has the positions that the service has acknowledged, by (partition, epoch). They are
    never older than those of an update, which may be delivered late.
    """

    def deadline_of(item: UpdatePartition) -> float | None:
        if item.deadline is None:
            return None
        return now + (item.deadline - update.now).total_seconds()

    partitions: dict[int, Owned] = {}
    warming: dict[int, Warming] = {}
    for item in sorted(update.partitions, key=lambda item: item.partition):
        number, epoch, deadline = item.partition, item.epoch, deadline_of(item)
        if item.state == "warming":
            warming[number] = Warming(number, epoch, item.position, deadline)
        elif item.state in ("owned", "revoking", "retiring"):
            position = known.get((number, epoch), item.position)
            partitions[number] = Owned(
                number,
                epoch,
                item.state,
                position,
                item.handed_over,
                deadline,
                update.resize,
                item.cut,
                bool(item.reached_cut),
                item.waits_for or (),
                item.key,
                item.parents or (),
                update.revision,
                item.paused,
                item.done_above,
            )
    return View(
        update.revision,
        update.active,
        update.draining,
        MappingProxyType(partitions),
        MappingProxyType(warming),
        update.held_until,
    )


def with_owners_of(view: View, update: Update) -> View:
    """The same view with newer committed positions of the partitions that warm up.

    Returns `view` itself if nothing changed.
    """
    positions = {
        (item.partition, item.epoch): item.position
        for item in update.partitions
        if item.state == "warming"
    }
    warming = {
        number: replace(one, position=positions.get((number, one.epoch), one.position))
        for number, one in view.warming.items()
    }
    return view if warming == view.warming else replace(view, warming=MappingProxyType(warming))


def changes(old: View, new: View) -> Iterator[Notice]:
    """The events between two views of a flow instance, in the order of their notices."""
    for number, was in old.partitions.items():
        held = new.partitions.get(number)
        if held is None or held.epoch != was.epoch:
            yield Lost(was)
    for number, warmed in old.warming.items():
        if number not in new.warming and number not in new.partitions:
            yield WarmingEnded(warmed)
    for number, owned in new.partitions.items():
        was_held = old.partitions.get(number)
        state_before = "owned"
        if was_held is None or was_held.epoch != owned.epoch:
            yield Granted(owned)
        else:
            state_before = was_held.state
        if owned.state != state_before:
            if owned.state == "revoking":
                yield Revoking(owned)
            elif owned.state == "retiring":
                yield Retiring(owned)
    for number, warms in new.warming.items():
        warmed_before = old.warming.get(number)
        if warmed_before is None or warmed_before.epoch != warms.epoch:
            yield WarmingStarted(warms)
