"""Request rates: a flood of requests must harm only its sender.

Four measures, each cheap enough to refuse thousands of requests a second:

- **A rate for each caller** (`Rates`). A flow is identified by its token, but only after the token
  has been verified (`admit`): an invented token gets no rate of its own. All other callers are
  identified by address. So many flows on one machine do not share a rate, and a flood without a
  token does not affect the flows at the same address. A big body counts as several requests.
- **A limit of requests in progress** (`MOST_AT_WORK`). Callers that each keep their rate can still
  be too many together. Then requests that can wait are refused. Renewals of leases (polls and
  heartbeats of flows that keep their rate) are never refused, so an overload costs no flow a
  partition. A request is in progress until its answer begins, but for the time in which its body
  is on its way or waits for its turn. So slow senders, slow readers and many big bodies do not
  use up the limit.
- **One big body at a time** (`BYTES_A_REQUEST` and more). A body that names thousands of partitions
  keeps the processor busy as long as hundreds of other requests. Between two such bodies all other
  requests have their turn. A caller may not send a second one before the first is answered.
- **A delayed refusal** (`HOLD_SECONDS`): a caller that ignores `Retry-After` gets only a few
  refusals a second on each connection, and cannot keep the service busy with them.

The rate is a token bucket stored as one number (the generic cell rate algorithm): the time at which
the bucket would be full again. A request is accepted if this time is at most a burst ahead.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter

from api.head import Head

BURST_SECONDS = 10.0
MOST_CALLERS = 100_000
MOST_AT_WORK = 256
HOLD_SECONDS = 0.25
MOST_HELD = 1000
BYTES_A_REQUEST = 65536
# The number of requests counted for a body of unknown length.
UNKNOWN_BYTES = 2**20

# These wait for an event before they answer, and cost little.
# Whole paths: a queue may be named `updates`.
_WAITING = re.compile("/v1/queues/[^/]+/(flows/[^/]+/(updates|heartbeat)|events)")
_RENEWALS = re.compile("/v1/queues/[^/]+/flows/[^/]+/(updates|heartbeat)")
_PROBES = frozenset(("/healthz", "/readyz", "/metrics"))


class Bucket:
    """The recent requests of each caller, as the time at which it has its whole burst again."""

    def __init__(
        self, per_second: float, burst_seconds: float = BURST_SECONDS, most: int = MOST_CALLERS
    ) -> None:
        """`per_second` 0: no limit. Beyond `most` callers the longest silent one is forgotten."""
        self._cost = 1 / per_second if per_second else 0.0
        self._burst_seconds = burst_seconds
        self._most = most
        self._full_at: OrderedDict[object, float] = OrderedDict()

    def __contains__(self, caller: object) -> bool:
        return caller in self._full_at

    def __len__(self) -> int:
        return len(self._full_at)

    def remember(self, caller: object) -> None:
        """Begin to count for this caller."""
        self._full_at.setdefault(caller, 0.0)
        if len(self._full_at) > self._most:
            self._full_at.popitem(last=False)

    def take(self, caller: object, requests: float, now: float) -> float:
        """0 if the caller may send this now (then it is counted); else the seconds until it may."""
        if not self._cost:
            return 0.0
        full_at = max(self._full_at.get(caller, 0.0), now)
        # A request larger than a burst waits for a whole burst.
        late = min(full_at + requests * self._cost - now, full_at - now + self._burst_seconds)
        # Sums of floats have rounding errors.
        if late > self._burst_seconds + 1e-6:
            return late - self._burst_seconds
        self._full_at[caller] = full_at + requests * self._cost
        self._full_at.move_to_end(caller)
        self.remember(caller)
        return 0.0


class Rates:
    """The rates of one application's callers; per second, 0 for no limit."""

    def __init__(
        self,
        flow_per_second: float,
        address_per_second: float,
        registry: CollectorRegistry,
        limit_bytes: int = 2**30,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bodies above `limit_bytes` are refused unread, so they count as `limit_bytes`."""
        self.flows = Bucket(flow_per_second)
        self.addresses = Bucket(address_per_second)
        self.at_work: set[object] = set()
        self.hold_seconds = HOLD_SECONDS
        self._held = 0
        self._one_big = asyncio.Lock()
        self._big: set[object] = set()
        self._limit_bytes = limit_bytes
        self._monotonic = monotonic
        self.refused = Counter(
            "counterpoise_http_refused",
            "Requests answered 429, by the exceeded limit: the rate of a flow, of an address, the "
            "limit of the service, the budget of bodies, the event streams of a key, a flow or "
            "an address, or the flows of a key.",
            ("limit",),
            registry=registry,
        )

    def admit(self, token: str) -> None:
        """This token belongs to a flow; the flow has its own rate from now on."""
        self.flows.remember(token.encode("latin-1", "replace"))

    def wait_seconds(self, head: Head) -> float:
        """Counts the request. 0 if its caller may send it now, else seconds until it may."""
        now = self._monotonic()
        requests = 1 + min(_size(head), self._limit_bytes) // BYTES_A_REQUEST
        if head.token in self.flows:
            head.caller, head.is_of_flow = head.token, True
            wait = self.flows.take(head.token, requests, now)
            if wait:
                self.refused.labels("flow").inc()
            return wait
        # Counted separately, so that a flood from the same address affects neither probes nor
        # flows whose token this replica does not know yet.
        kind = "probe" if head.path in _PROBES else "token" if head.token else "open"
        wait = self.addresses.take((head.network, kind), requests, now)
        if wait:
            self.refused.labels("address").inc()
        return wait

    def renews(self, token: bytes) -> bool:
        """Counts a request without a body; False, and not counted, if this is no token of a flow
        that keeps its rate.
        """
        return token in self.flows and not self.flows.take(token, 1, self._monotonic())

    def too_much(self, head: Head) -> bool:
        """Whether so much is in progress that this complete request is refused."""
        if len(self.at_work) < MOST_AT_WORK or head.path in _PROBES:
            return False
        if _RENEWALS.fullmatch(head.path) and head.is_of_flow:
            return False
        self.refused.labels("service").inc()
        return True

    def enter(self, head: Head, held: list[Callable[[], object]]) -> bool:
        """A request, whose body may still have to come, is in progress until all that is put into
        `held` has been called. False: it is refused.
        """
        if self.too_much(head):
            return False
        if not _waits(head):
            self._take_place(held)
        return True

    def _take_place(self, held: list[Callable[[], object]]) -> None:
        place = object()
        self.at_work.add(place)
        held.append(partial(self.at_work.discard, place))

    async def begin(self, head: Head, held: list[Callable[[], object]]) -> bool:
        """As `enter`, of a request whose body is complete: a big one waits for those before it."""
        if self.too_much(head):
            return False
        if _waits(head):
            return True
        is_big = _size(head) >= BYTES_A_REQUEST
        if is_big:
            if head.caller in self._big:
                self.refused.labels("flow" if head.is_of_flow else "address").inc()
                return False
            self._big.add(head.caller)
            held.append(partial(self._big.discard, head.caller))
            await self._one_big.acquire()
            held.append(self._one_big.release)
        self._take_place(held)
        return True

    async def hold(self) -> None:
        """Delays a refusal, unless too many are held already."""
        if self._held < MOST_HELD:
            self._held += 1
            try:
                await asyncio.sleep(self.hold_seconds)
            finally:
                self._held -= 1


def _waits(head: Head) -> bool:
    """Whether the request waits for an event or is a probe."""
    return head.path in _PROBES or _WAITING.fullmatch(head.path) is not None


def _size(head: Head) -> int:
    """The bytes that are counted for the request's body."""
    return UNKNOWN_BYTES if head.is_chunked else head.length
