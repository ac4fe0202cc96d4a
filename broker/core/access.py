"""Who calls, and what each caller may do (the contract, *Who may call what*).

A caller has **rights**, and **patterns** of the names of queues that the rights are for. A key has
the rights of its role. A flow, known by its token, may see its queue and read its log; what it may
do as this flow follows from the token alone and is no right. On a service without keys each caller
is an administrator of everything.

Names are checked, never queues: nothing shows whether a queue exists before the caller may know it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from broker.core.errors import Forbidden, Invalid

# A queue's name, with `*` and `?`.
_PATTERN = re.compile(r"[A-Za-z0-9._*?-]{1,200}")
ALL_QUEUES = ("*",)
MOST_KEY_NAME = 200
# A flow's token is shorter, so no text is both.
_KEY = re.compile(r"cp_([0-9a-f]{12})_[0-9a-f]{64}")


class Right(StrEnum):
    """What a call needs of its caller."""

    SEE = "see"  # queues, their status, partitions and flows
    PUBLISH = "publish"  # append to the log
    CONSUME = "consume"  # bind, and read the log
    ADMINISTER = "administer"


class Role(StrEnum):
    """What a key is for."""

    VIEWER = "viewer"
    PUBLISHER = "publisher"
    CONSUMER = "consumer"
    ADMIN = "admin"


RIGHTS: dict[Role, frozenset[Right]] = {
    Role.VIEWER: frozenset({Right.SEE}),
    Role.PUBLISHER: frozenset({Right.SEE, Right.PUBLISH}),
    Role.CONSUMER: frozenset({Right.SEE, Right.CONSUME}),
    Role.ADMIN: frozenset(Right),
}
FLOW_RIGHTS = frozenset({Right.SEE, Right.CONSUME})


def key_of(id: str, secret: str) -> str:
    """The key as its holder sends it; `secret` is 64 hexadecimal digits."""
    key = f"cp_{id}_{secret}"
    assert _KEY.fullmatch(key)
    return key


def key_id_of(token: str) -> str | None:
    """The public id in a token that is a key by its form; None for any other token."""
    found = _KEY.fullmatch(token)
    return found and found[1]


def digest(token: str) -> bytes:
    """What is stored of a key, a flow's token or a session: SHA-256.

    A fast hash is right, because each has 256 random bits: nobody can guess one, at any speed.
    """
    return hashlib.sha256(token.encode()).digest()


def check_patterns(patterns: tuple[str, ...]) -> None:
    """Raises Invalid for a text that is no pattern of queue names, and for none at all."""
    if not patterns:
        raise Invalid("Give at least one pattern of queues; '*' is for all.")
    for pattern in patterns:
        if not _PATTERN.fullmatch(pattern):
            raise Invalid(
                f"{pattern!r} is no pattern of queues: 1 to 200 of the characters "
                "A-Z a-z 0-9 . _ - and the wildcards * and ?."
            )


def check_key_name(name: str) -> None:
    """Raises Invalid for a text that is no name of a key."""
    if len(name) > MOST_KEY_NAME or not name.isprintable():
        raise Invalid(f"A key's name is text in one line of at most {MOST_KEY_NAME} characters.")


def matches(patterns: tuple[str, ...], name: str) -> bool:
    """Whether some pattern matches the whole name; case counts.

    `name` may be a pattern, too: then whether some pattern matches each name that this one matches.
    A `*` takes any run of its characters, a `?` any one but `*`, which may stand for none or
    several. So the answer is never yes where a name is missing. It may be no where two patterns say
    the same in different ways (`?*` and `*?`), or where several of these have to match together.
    """
    places: dict[str, int] = {}
    for place, one in enumerate(name):
        places[one] = places.get(one, 0) | 1 << place
    places["?"] = (1 << len(name)) - 1 & ~places.get("*", 0)
    return any(_matches(pattern, places, len(name)) for pattern in patterns)


def _matches(pattern: str, places: Mapping[str, int], length: int) -> bool:
    """One step for each character of the pattern, because a key may have many long ones.

    `places`: where each character fits into the name, as bits. Bit n of `reached`: what comes
    before this character of the pattern has matched the first n of the name.
    """
    reached = 1
    for one in pattern:
        if one == "*":
            reached = (2 << length) - (reached & -reached)
        else:
            reached = (reached & places.get(one, 0)) << 1
        if not reached:
            return False
    return bool(reached >> length)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call.

    `key_id` is None for a caller on a service without keys, and for a flow that was bound there;
    `role` is None for a flow. `flow_id` is set for a flow, whose only pattern is the name of its
    queue. `ends_at`: when the credential ends, in Unix seconds of the store. `address` is the
    caller's network address, for the audit. `session`: the hash of a browser's session, which only
    reads, but until `unlocked_until` (Unix seconds of the store).
    """

    rights: frozenset[Right]
    patterns: tuple[str, ...] = ALL_QUEUES
    role: Role | None = None
    key_id: str | None = None
    key_name: str | None = None
    flow_id: str | None = None
    ends_at: float | None = None
    address: str | None = None
    session: bytes | None = None
    unlocked_until: float | None = None

    def sees(self, queue: str) -> bool:
        """Whether the queue of this name is in the caller's lists."""
        return self.has(Right.SEE, queue)

    def has(self, right: Right, queue: str) -> bool:
        """Whether the caller has this right on the queue of this name."""
        return right in self.rights and matches(self.patterns, queue)

    def require(self, *rights: Right, queue: str | None = None) -> None:
        """Raises Forbidden unless the caller has one of these rights, for this queue if named."""
        if self.rights.isdisjoint(rights):
            needed = " or ".join(sorted(role for role in Role if RIGHTS[role] & set(rights)))
            raise Forbidden(
                f"{self._who()} may not do this; it takes a key with the role {needed}."
            )
        if queue is not None and not matches(self.patterns, queue):
            raise Forbidden(f"{self._who()} is not for the queue {queue!r}.")

    def _who(self) -> str:
        if self.flow_id is not None:
            return "A flow's token, which is for this flow and its queue only,"
        return f"The key {self.key_id}, a {self.role} of {', '.join(self.patterns)},"


def anybody(address: str | None = None) -> Caller:
    """A caller on a service without keys: an administrator."""
    return Caller(RIGHTS[Role.ADMIN], role=Role.ADMIN, address=address)


def flow_caller(flow_id: str, queue: str, key_id: str | None, address: str | None) -> Caller:
    """A flow on its own queue."""
    return Caller(FLOW_RIGHTS, patterns=(queue,), key_id=key_id, flow_id=flow_id, address=address)
