"""Positions that the service has accepted from a flow.

An update may be made before a commit and delivered after it. So for each grant a view shows the
position that was acknowledged last, in the order in which the commits were sent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from counterpoise.flow.view import Key, Owned
from counterpoise.wire import ChildrenItem, CommitItem


class Acknowledged:
    """By (partition, epoch): the number of the call and the position that it carried."""

    def __init__(self) -> None:
        self._by_key: dict[Key, tuple[int, str]] = {}

    def take(
        self, partitions: Mapping[int, Owned], accepted: Sequence[object], seq: int
    ) -> Mapping[int, Owned]:
        """The partitions after these items of call `seq` took effect; the later call wins.

        Of the items, those that commit a position and keep the partition count.
        """
        changed = dict(partitions)
        for item in accepted:
            if not isinstance(item, CommitItem | ChildrenItem) or item.position is None:
                continue
            owned = changed.get(item.partition)
            key = (item.partition, item.epoch)
            seen, _ = self._by_key.get(key, (0, ""))
            if owned is not None and owned.epoch == item.epoch and seen < seq:
                self._by_key[key] = (seq, item.position)
                changed[item.partition] = replace(owned, position=item.position)
        return MappingProxyType(changed)

    def positions(self) -> Mapping[Key, str]:
        """The positions that were acknowledged last."""
        return {key: position for key, (_, position) in self._by_key.items()}

    def keep(self, held: Collection[Key]) -> None:
        """Forget all grants except these."""
        for key in [key for key in self._by_key if key not in held]:
            del self._by_key[key]
