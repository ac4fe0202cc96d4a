"""Long polls on a short way.

Thousands of flows wait in long polls, one after another, so most requests of a service are polls.
The layers of a request (limits, metrics, errors, routing, permissions) take more of the processor
than all that such a poll needs. So a poll of the form in which clients send it is looked at here
first. It goes the short way if this replica knows the flow and its token, and the flow keeps its
rate. Nothing is asked of the database for that.

**The short way refuses nothing.** Whatever is not certain goes the usual way, which decides, and
tells the caller. So there is no second place for any refusal. A poll of the short way is counted,
waits and ends exactly like one of the usual way (`api.streams.DeferredCall`).
"""

import re
import time
from functools import partial

from starlette.applications import Starlette
from starlette.types import Scope

from api.metrics import Metrics
from api.rates import Rates
from api.routes import flows
from api.routing import FLOW_ID_PATTERN, LONGEST_WAIT_SECONDS
from api.security import host_name, is_own_name
from api.streams import DeferredCall
from broker import tracing
from broker.service import Broker
from broker.settings import Settings
from counterpoise.wire import QUEUE_NAME_PATTERN

_PATH = re.compile(
    f"/v1/queues/({QUEUE_NAME_PATTERN.strip('^$')})/flows/({FLOW_ID_PATTERN.strip('^$')})/updates"
)
_QUERY = re.compile(rb"after=([0-9]{1,18})&wait=([0-9]{1,2}(?:\.[0-9]{1,20})?)")
_BEARER = b"Bearer "
# A body, or a stream.
_UNUSUAL = frozenset((b"content-length", b"transfer-encoding", b"last-event-id"))


class Polls:
    """The long polls of one application."""

    def __init__(self, app: Starlette) -> None:
        self._app = app
        self._broker: Broker = app.state.broker
        self._rates: Rates = app.state.rates
        self._metrics: Metrics = app.state.metrics
        self._settings: Settings = app.state.settings

    def begin(self, scope: Scope) -> DeferredCall | None:
        """The poll of this request, which is admitted and counted; None: the usual way."""
        path: str = scope["path"]
        if not path.endswith("/updates") or scope["method"] != "GET":
            return None
        place, query = _PATH.fullmatch(path), _QUERY.fullmatch(scope["query_string"])
        token = self._token(scope)
        if place is None or query is None or token is None:
            return None
        (queue, flow_id), wait_seconds = place.groups(), float(query[2])
        if (
            wait_seconds > LONGEST_WAIT_SECONDS
            or tracing.api() is not None
            or (flow := self._broker.bound_flows.known(queue, flow_id, token.decode())) is None
            or not self._rates.renews(token)
        ):
            return None
        call = flows.waiting(self._app, flow, int(query[1]), wait_seconds)
        call.count = partial(
            self._metrics.count_request, "GET", flows.UPDATES_PATH, time.perf_counter()
        )
        return call

    def _token(self, scope: Scope) -> bytes | None:
        """The flow's token; None if the head is not the usual one, or names another service."""
        token, host = None, b""
        for name, value in scope["headers"]:
            if name == b"authorization":
                if token is not None or not value.startswith(_BEARER) or not value.isascii():
                    return None
                token = value[len(_BEARER) :]
            elif name in _UNUSUAL or (name == b"accept" and b"event-stream" in value):
                return None
            elif name == b"host":
                host = value
        if self._settings.allowed_hosts and not is_own_name(
            host_name(host.decode("latin-1")), self._settings
        ):
            return None
        return token
