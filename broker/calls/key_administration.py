"""Administrators make, list and revoke keys through the service (docs, *Security*).

**No key makes a stronger one.** A new key is for queues of its maker's patterns, and ends no later
than its maker does. The roles of keys that make others need no rule: only administrators do, and no
role is stronger. A key that a stolen one made stays when the stolen one is revoked; the audit names
the maker of each.

**The first key** closes the service to callers without one. A caller without a key makes it only
through the service's own machine, and only as long as there was never a key; it must be an
administrator's of all queues, because nobody else could make the next one.

A key is shown to administrators of its patterns, also if it lasts longer than theirs. To others it
does not exist.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

from msgspec import structs

from broker.calls.access import QueueAccess
from broker.calls.monitoring import foreign_cursor
from broker.calls.rendering import key_view
from broker.core.access import (
    ALL_QUEUES,
    Caller,
    Role,
    check_key_name,
    check_patterns,
    digest,
    key_of,
    matches,
)
from broker.core.errors import Forbidden, Invalid, KeyNotFound, Unauthorized
from broker.replica.store_calls import store_available
from broker.store.ports import Act, KeySummary, NewKey
from counterpoise import wire

_NEEDS_KEY = (
    "This service has keys: send an administrator's as bearer token. A lost one is replaced with "
    "'counterpoise keys create' on the database (--database-url or --data-dir)."
)

# There may be very many, and each may take 20 kB.
KEYS_AT_ONCE = 200
# Of patterns that are compared: some milliseconds if all are as long as they may be.
PAIRS_AT_ONCE = 200


class KeyAdministration:
    """What administrators do with keys, on one replica."""

    def __init__(self, queues: QueueAccess) -> None:
        self._keys = queues.store.keys
        self._clock = queues.replica.clock

    async def create(
        self,
        caller: Caller,
        role: Role,
        queues: Sequence[str],
        name: str,
        ends_at: float | None,
        *,
        local: bool,
    ) -> wire.MadeKey:
        """Makes a key; `local`: the caller is on the service's machine.

        Raises Invalid, Forbidden, and Unauthorized for a caller without a key if there are keys.
        """
        only_first = caller.key_id is None
        await self._refuse_keyless(caller)
        patterns = tuple(dict.fromkeys(queues))
        check_patterns(patterns)
        check_key_name(name)
        if ends_at is not None and ends_at <= self._clock.now():
            raise Invalid("The end of the key has passed already.")
        if only_first:
            _check_first(role, patterns, ends_at, local)
        else:
            await _check_weaker(caller, patterns, ends_at)
        id = secrets.token_hex(6)
        text = key_of(id, secrets.token_hex(32))
        new = NewKey(id, digest(text), name, role.value, patterns, ends_at)
        with store_available():
            made = await self._keys.make(new, _act(caller, "create_key"), only_first=only_first)
        if made is None:
            raise Unauthorized(_NEEDS_KEY)
        return wire.MadeKey(**structs.asdict(key_view(made)), key=text, is_first=only_first)

    async def list(
        self, caller: Caller, limit: int, cursor: str | None, *, everything: bool
    ) -> wire.Page[wire.Key]:
        """The keys in the order in which they were made; the cursor is the last id of the page
        before. `everything`: also those that do not count any more. Raises Unauthorized, Invalid.
        """
        await self._refuse_keyless(caller)
        # It may have been revoked since.
        if cursor is not None and await self._shown(caller, cursor) is None:
            raise foreign_cursor()
        found: list[KeySummary] = []
        while len(found) <= limit:
            with store_available():
                some = await self._keys.page(KEYS_AT_ONCE, cursor, everything=everything)
            is_covered = await _covered(caller.patterns, [one.queues for one in some])
            found += [one for one, its in zip(some, is_covered, strict=True) if its]
            if len(some) < KEYS_AT_ONCE:
                break
            cursor = some[-1].id
        items = tuple(map(key_view, found[:limit]))
        return wire.Page(items, items[-1].id if len(found) > limit else None)

    async def revoke(self, caller: Caller, key_id: str) -> wire.Key:
        """Revokes a key, for good. Harmless when repeated. Raises KeyNotFound, Unauthorized."""
        await self._refuse_keyless(caller)
        if await self._shown(caller, key_id) is None:
            raise KeyNotFound(key_id)
        with store_available():
            revoked = await self._keys.revoke(key_id, _act(caller, "revoke_key"))
        if revoked is None:
            # It has ended long ago, and was forgotten just now.
            raise KeyNotFound(key_id)
        return key_view(revoked)

    async def _refuse_keyless(self, caller: Caller) -> None:
        """Raises Unauthorized for a caller without a key, if there are keys."""
        if caller.key_id is None:
            with store_available():
                if (await self._keys.read(())).any_made:
                    raise Unauthorized(_NEEDS_KEY)

    async def _shown(self, caller: Caller, key_id: str) -> KeySummary | None:
        """The key of this id, if the caller may see it."""
        with store_available():
            known = await self._keys.one(key_id)
        if known is None or await _covered(caller.patterns, [known.queues]) == [False]:
            return None
        return known


def _check_first(role: Role, patterns: tuple[str, ...], ends_at: float | None, local: bool) -> None:
    """Raises unless this may be the first key."""
    if not local:
        raise Forbidden(
            "The first key is made on the service's own machine, or with 'counterpoise keys "
            "create' on the database (--database-url or --data-dir)."
        )
    if role is not Role.ADMIN or patterns != ALL_QUEUES or ends_at is not None:
        raise Forbidden(
            "The first key must be an admin's of all queues ('*') without an end: it closes the "
            "service, and nobody else could make the next one."
        )


async def _covered(patterns: tuple[str, ...], several: Sequence[Sequence[str]]) -> list[bool]:
    """Whether these patterns cover each of several keys', with pauses: all may be many and long."""
    found: list[bool] = []
    pairs = 0
    for others in several:
        found.append(True)
        for other in others:
            pairs += len(patterns)
            if pairs > PAIRS_AT_ONCE:
                pairs = 0
                await asyncio.sleep(0)
            if not matches(patterns, other):
                found[-1] = False
                break
    return found


async def _check_weaker(caller: Caller, patterns: tuple[str, ...], ends_at: float | None) -> None:
    """Raises Forbidden for a key that could do what the caller's cannot."""
    if await _covered(caller.patterns, [patterns]) == [False]:
        raise Forbidden(
            f"A key of {', '.join(caller.patterns)} makes keys only for these queues, not for "
            f"{', '.join(patterns)}."
        )
    if caller.ends_at is not None and (ends_at is None or ends_at > caller.ends_at):
        raise Forbidden("A key makes no key that lasts longer than itself; give an earlier end.")


def _act(caller: Caller, call: str) -> Act:
    return Act(call, key_id=caller.key_id, key_name=caller.key_name, address=caller.address)
