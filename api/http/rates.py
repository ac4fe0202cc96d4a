"""Request rates: a flood of requests must harm only its sender.

Four measures, each cheap enough to refuse thousands of requests a second:

- **A rate for each caller** (`Rates`). A flow is identified by its token, but only after the token
  has been verified (`admit`): an invented token gets no rate of its own. All other callers are
  identified by address. So many flows on one machine do not share a rate, and a flood without a
  token does not affect the flows at the same address. A big body counts as several requests.
- **A limit of requests in progress** (`MOST_AT_WORK`). Callers that each keep their rate can still
  be too many together. Then requests that can wait are refused. Renewals of leases (polls and
  heartbeats of flows that keep their rate) are never refused, so an overload costs no flow a
  partition. A request is in progress from the moment it is complete until its answer begins, so
  slow senders and slow readers do not use up the limit.
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
import functools
import ipaddress
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry, Counter
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.problems import problem

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
        self.at_work = 0
        self.held = 0
        self.one_big = asyncio.Lock()
        self._big: set[object] = set()
        self._limit_bytes = limit_bytes
        self._monotonic = monotonic
        self.refused = Counter(
            "counterpoise_http_refused",
            "Requests answered 429, by the exceeded limit: the rate of a flow, of an address, the "
            "limit of the service, or the budget of bodies.",
            ("limit",),
            registry=registry,
        )

    def admit(self, token: str) -> None:
        """This token belongs to a flow; the flow has its own rate from now on."""
        self.flows.remember(token.encode("latin-1", "replace"))

    def wait_seconds(self, scope: Scope) -> float:
        """Counts the request. 0 if its caller may send it now, else seconds until it may."""
        now = self._monotonic()
        token, length = _token_and_length(scope)
        requests = 1 + min(length, self._limit_bytes) // BYTES_A_REQUEST
        if token in self.flows:
            wait = self.flows.take(token, requests, now)
            if wait:
                self.refused.labels("flow").inc()
            return wait
        # Counted separately, so that a flood from the same address affects neither probes nor
        # flows whose token this replica does not know yet.
        kind = "probe" if scope["path"] in _PROBES else "token" if token else "open"
        wait = self.addresses.take((_network(scope), kind), requests, now)
        if wait:
            self.refused.labels("address").inc()
        return wait

    def renews(self, token: bytes) -> bool:
        """Counts a request without a body; False, and not counted, if this is no token of a flow
        that keeps its rate.
        """
        return token in self.flows and not self.flows.take(token, 1, self._monotonic())

    def caller(self, scope: Scope) -> object:
        """Whose request this is: a flow's by its token, else its address's."""
        token = _token_and_length(scope)[0]
        return token if token in self.flows else _network(scope)

    def begin_big(self, scope: Scope) -> object | None:
        """The sender of this big body, for `end_big`; None if it has another one in progress."""
        caller = self.caller(scope)
        if caller in self._big:
            self.refused.labels("flow" if caller in self.flows else "address").inc()
            return None
        self._big.add(caller)
        return caller

    def end_big(self, caller: object) -> None:
        """The big body of this caller is processed."""
        self._big.discard(caller)

    def begin_work(self) -> None:
        """One more request is in progress."""
        self.at_work += 1

    def end_work(self) -> None:
        """A request in progress has ended."""
        self.at_work -= 1

    def too_much(self, scope: Scope) -> bool:
        """Whether so much is in progress that this complete request is refused."""
        path: str = scope["path"]
        if self.at_work < MOST_AT_WORK or path in _PROBES:
            return False
        if _RENEWALS.fullmatch(path) and _token_and_length(scope)[0] in self.flows:
            return False
        self.refused.labels("service").inc()
        return True


class LimitRates:
    """ASGI middleware: 429 with `Retry-After` for a caller over its rate."""

    def __init__(self, app: ASGIApp, rates: Rates) -> None:
        self.app = app
        self.rates = rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        wait_seconds = self.rates.wait_seconds(scope)
        if wait_seconds:
            # The body is not read, so the connection cannot be used again.
            headers = {"Connection": "close"} if _has_body(scope) else {}
            answer = await refusal(self.rates, wait_seconds, headers)
            await answer(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class LimitWork:
    """ASGI middleware: 429 while the service is at its limit. Runs inside all that waits."""

    def __init__(self, app: ASGIApp, rates: Rates) -> None:
        self.app = app
        self.rates = rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif self.rates.too_much(scope):
            answer = await refusal(self.rates, 1.0, {})
            await answer(scope, receive, send)
        elif _WAITING.fullmatch(scope["path"]) or scope["path"] in _PROBES:
            await self.app(scope, receive, send)
        else:
            await self._work(scope, receive, send)

    async def _work(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Holds a place until the answer begins; a big body holds it while it waits, too."""
        rates = self.rates
        async with AsyncExitStack() as held:
            is_big = _token_and_length(scope)[1] >= BYTES_A_REQUEST
            if is_big:
                caller = rates.begin_big(scope)
                if caller is None:
                    answer = await refusal(rates, 1.0, {})
                    await answer(scope, receive, send)
                    return
                held.callback(rates.end_big, caller)
            rates.begin_work()
            held.callback(rates.end_work)
            if is_big:
                await held.enter_async_context(rates.one_big)

            async def answered(message: Message) -> None:
                await held.aclose()
                await send(message)

            await self.app(scope, receive, answered)


async def refusal(rates: Rates, wait_seconds: float, headers: dict[str, str]) -> Response:
    """The answer 429, after `HOLD_SECONDS`."""
    if rates.held < MOST_HELD:
        rates.held += 1
        try:
            await asyncio.sleep(HOLD_SECONDS)
        finally:
            rates.held -= 1
    seconds = max(1, math.ceil(wait_seconds))
    return problem(
        "too_many_requests",
        f"This caller is over its rate, or the service is at its limit; try again in "
        f"{seconds} s, and ask for several partitions at once.",
        headers={**headers, "Retry-After": str(seconds)},
    )


def _token_and_length(scope: Scope) -> tuple[bytes, int]:
    """The bearer token (empty without one), and the declared length of the body."""
    token, length = b"", 0
    for name, value in scope["headers"]:
        if name == b"authorization":
            token = value.partition(b" ")[2].strip()
        elif name == b"content-length" and value.isdigit():
            length = int(value)
        elif name == b"transfer-encoding":
            length = UNKNOWN_BYTES
    return token, length


def _has_body(scope: Scope) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in scope["headers"]
    )


def _network(scope: Scope) -> str:
    client = scope.get("client")
    return network_of(client[0] if client else "")


@functools.lru_cache(maxsize=10_000)
def network_of(host: str) -> str:
    """Whose address this is: of IPv6 its first 64 bits, because a site may use all the others."""
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False).network_address)
