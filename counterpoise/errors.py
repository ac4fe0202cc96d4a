"""Errors between a program and the service: one exception for each reaction of the program.

A refusal carries a stable `code` (RFC 9457, the contract, *HTTP*). A code to which a program reacts
in its own way is an exception here; the others are `Refused`, whose message says what to do.
Every temporary failure (service away, restarting, overloaded, a cut connection, an unreadable
answer) is a `ServiceUnavailable`, so that one `except` clause can retry it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple


class CounterpoiseError(Exception):
    """Any error in Counterpoise or on the way to it."""

    code: str = "error"


class InvalidSettings(CounterpoiseError):
    """The address, proxy, token or certificates to reach the service with cannot be used.

    The message says which, and shows no secret.
    """

    code = "invalid_settings"


class NotCounterpoise(CounterpoiseError):
    """The server at this address is not a Counterpoise service."""

    code = "not_counterpoise"


# ------------------------------------------------------------------ temporary failures


class ServiceUnavailable(CounterpoiseError):
    """The service cannot answer now, or it or a proxy has failed; the same call may succeed later.

    `retry_after` is the wait that the service asked for, in seconds, or None. `code` is that of the
    service's answer, as `too_many_requests`: this program is over its rate, or the service is
    overloaded.
    """

    code = "unavailable"

    def __init__(self, message: str, retry_after: float | None = None, code: str = "") -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.code = code or type(self).code


class Unreachable(ServiceUnavailable):
    """No connection, or it was cut or too slow. The call may have taken effect or not."""

    code = "unreachable"


class QueueUnreadable(ServiceUnavailable):
    """The service cannot read this queue, which can be deleted; all others are served."""

    code = "queue_unreadable"


class BadAnswer(ServiceUnavailable):
    """This client cannot read the answer: it is cut short, or does not follow the contract."""

    code = "bad_answer"


class Overtaken(ServiceUnavailable):
    """A later bind of this client was carried out first, so this bind changed nothing. If the later
    bind got no answer, bind again with a higher attempt.
    """

    code = "overtaken"


# ------------------------------------------------------------------ refused by the service


class Refused(CounterpoiseError):
    """The service understood the call and refused it; an unchanged call is refused again.

    `status` is the HTTP status, `problem` the whole problem document.
    """

    code = "refused"

    def __init__(
        self, message: str, status: int = 0, problem: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.problem: Mapping[str, Any] = problem or {}
        self.code = str(self.problem.get("code", type(self).code))


class QueueNotFound(Refused):
    """No queue has this name (any more)."""

    code = "queue_not_found"


class QueueExists(Refused):
    """A queue of this name exists already, with other settings."""

    code = "queue_exists"


class QueueInUse(Refused):
    """The queue has bound flows (`force` deletes it nevertheless), or another one reads its log."""

    code = "queue_in_use"


class ResizeUnsettled(Refused):
    """An ordered resize has to settle before the next one."""

    code = "resize_unsettled"


class StateKept(Refused):
    """State that a consumer keeps outside of the queue would be divided."""

    code = "state_kept"


class FlowNotFound(Refused):
    """The service knows no such flow: it never existed, or left more than 24 hours ago."""

    code = "flow_not_found"


class FlowGone(Refused):
    """The flow has ended.

    `reason`: `lease_expired`, `replaced` (another bind used its `instance_id`),
    `unbound` (by this program or by an administrator), `key_ended` (its key was revoked or
    reached its end), `restored` (the service was restored from a backup), or `queue_recreated`
    (the queue was deleted and made again).
    """

    code = "flow_gone"

    @property
    def reason(self) -> str:
        """Why it has ended; `unknown` if the service did not say."""
        return str(self.problem.get("reason", "unknown"))


class Unauthorized(Refused):
    """The call needs a credential; none or a wrong one was sent."""

    code = "unauthorized"


class Forbidden(Refused):
    """The credential is known but does not allow this."""

    code = "forbidden"


class InvalidField(NamedTuple):
    """One error in a request: the path of the field (dotted), and a message."""

    field: str
    message: str


class Invalid(Refused):
    """The service refused the request as invalid; `errors` names each wrong field."""

    code = "invalid"

    @property
    def errors(self) -> Sequence[InvalidField]:
        """Each wrong field with a message; empty if the service named none."""
        found = self.problem.get("errors")
        return tuple(
            InvalidField(str(error.get("field", "")), str(error.get("message", "")))
            for error in (found if isinstance(found, list) else ())
            if isinstance(error, Mapping)
        )

    def __str__(self) -> str:
        text = super().__str__()
        unsaid = [error for error in self.errors if error.message not in text]
        return "; ".join([text, *(f"{error.field}: {error.message}" for error in unsaid)])


# ------------------------------------------------------------------ wrong use in this process


class NotBound(CounterpoiseError):
    """The flow has not been opened, is not bound yet, is closed, or belongs to a parent process."""

    code = "not_bound"


class EndRefused(CounterpoiseError):
    """The service does not take the report that partitions have ended: what comes after them waits
    until a person acts.
    """

    code = "end_refused"


_REFUSALS: Mapping[str, type[Refused]] = {
    kind.code: kind
    for kind in (
        QueueNotFound,
        QueueExists,
        QueueInUse,
        ResizeUnsettled,
        StateKept,
        FlowNotFound,
        FlowGone,
        Unauthorized,
        Forbidden,
        Invalid,
    )
}
_PASSING: Mapping[str, type[ServiceUnavailable]] = {
    kind.code: kind for kind in (Overtaken, QueueUnreadable)
}
_MOST_MESSAGE_CHARACTERS = 4_000
_TRANSIENT_STATUSES = frozenset({408, 425, 429})


# The service names calls of HTTP; a program makes them with `Client`.
_IN_PYTHON = tuple(
    (re.compile(call), method)
    for call, method in (
        (r"GET /v1/queues/\S+/partitions\b", "Client.partitions()"),
        (r"GET /v1/queues\b", "Client.queues()"),
        (r"POST /v1/queues\b", "Client.create_queue()"),
        (r"PATCH /v1/queues/\S+", "Client.change_queue()"),
        (r"DELETE /v1/queues/[^\s)]+", "Client.delete_queue(force=True)"),
        (r"\?force=true\b", "force=True"),
        (r"GET …/rebalance\b", "Client.rebalance_status()"),
        (r"GET …/lineage\b", "Client.lineage()"),
        (r"POST …/positions\b", "Client.set_positions()"),
        (r"POST …/flows\b", "Client.bind()"),
        (r"GET /v1/keys\b", "Client.list_keys()"),
    )
)


def in_python(message: str) -> str:
    """A message of the service that names the methods of `Client` instead of calls of HTTP."""
    for call, method in _IN_PYTHON:
        message = call.sub(method, message)
    return message


def described(error: BaseException, text: Callable[[BaseException], str] = repr) -> str:
    """The `repr` (or `str`) of a program's error, also if it raises an error itself."""
    try:
        return text(error)
    except Exception:
        return f"<{type(error).__name__} without a text>"


def as_passing(error: CounterpoiseError) -> CounterpoiseError:
    """For a program that has reached the service before: ServiceUnavailable in place of the page of
    a proxy, or of another server; else the error itself.
    """
    if isinstance(error, NotCounterpoise):
        return ServiceUnavailable(f"something else answered in the service's place: {error}")
    return error


@contextmanager
def reached_before() -> Iterator[None]:
    """Errors of the block are raised `as_passing`."""
    try:
        yield
    except CounterpoiseError as error:
        found = as_passing(error)
        if found is error:
            raise
        raise found from error


def error_of(
    status: int, problem: Mapping[str, Any] | None, retry_after: float | None = None
) -> CounterpoiseError:
    """The exception for an answer that is not a success.

    `problem` is the decoded problem document, or None if the body was not one: then the server is
    not a Counterpoise service.
    """
    if problem is None:
        if status >= 500 or status in _TRANSIENT_STATUSES:
            return ServiceUnavailable(f"the service answered HTTP {status}", retry_after)
        return NotCounterpoise(
            f"HTTP {status} without a problem document: is this address a Counterpoise service?"
        )
    message = str(problem.get("detail") or problem.get("title") or f"HTTP {status}")
    message = in_python(message[:_MOST_MESSAGE_CHARACTERS])
    code = str(problem.get("code", ""))
    if code in _PASSING:
        return _PASSING[code](message, retry_after)
    if status >= 500 or status in _TRANSIENT_STATUSES:
        return ServiceUnavailable(message, retry_after, code)
    return _REFUSALS.get(code, Refused)(message, status, problem)
