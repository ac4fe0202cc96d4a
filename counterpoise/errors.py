"""What can go wrong between a program and the service, one exception for each thing to do about it.

Answers that refuse something carry a stable `code` (RFC 9457, the contract, *HTTP*); each code is
an exception here. Everything that may pass by itself (service away, restarting, overloaded, a cut
connection, an unreadable answer) is a `ServiceUnavailable`, so that one `except` clause retries it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


class CounterpoiseError(Exception):
    """Anything that went wrong in or on the way to Counterpoise."""

    code: str = "error"


class InvalidUrl(CounterpoiseError):
    """The address of the service is not an http:// or https:// URL."""

    code = "invalid_url"


class NotCounterpoise(CounterpoiseError):
    """Something answers at this address, but it is not a Counterpoise service."""

    code = "not_counterpoise"


# ------------------------------------------------------------------ may pass by itself


class ServiceUnavailable(CounterpoiseError):
    """The service cannot answer now; the same call may succeed later.

    `retry_after` is what the service asked to wait, in seconds, or None.
    """

    code = "unavailable"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unreachable(ServiceUnavailable):
    """No connection, or it was cut or too slow: whether the call took effect is not known."""

    code = "unreachable"


class ServiceFailed(ServiceUnavailable):
    """The service, or something in between, answered with a failure of its own (5xx)."""

    code = "internal"


class TooManyRequests(ServiceUnavailable):
    """This program asks too much, or the service is overloaded: wait for `retry_after` seconds."""

    code = "too_many_requests"


class BadAnswer(ServiceUnavailable):
    """An answer arrived that this client cannot read: cut short, or not what the contract says."""

    code = "bad_answer"


class Overtaken(ServiceUnavailable):
    """A later bind of this program was carried out first, so this one changed nothing: bind again
    with a higher attempt if no answer to that one has come.
    """

    code = "overtaken"


# ------------------------------------------------------------------ refused by the service


class Refused(CounterpoiseError):
    """The service understood the call and refused it; repeating it unchanged is of no use.

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
    """There is no queue of this name (any more)."""

    code = "queue_not_found"


class QueueExists(Refused):
    """A queue of this name exists already."""

    code = "queue_exists"


class QueueInUse(Refused):
    """The queue has bound flows; delete it with force to do so all the same."""

    code = "queue_in_use"


class ResizeUnsettled(Refused):
    """An ordered resize has to settle before the next one."""

    code = "resize_unsettled"


class FlowNotFound(Refused):
    """The service knows no such flow: it never existed, or left more than 24 hours ago."""

    code = "flow_not_found"


class FlowGone(Refused):
    """The flow is over.

    `reason` tells how: `lease_expired`, `replaced` (its instance was bound anew elsewhere),
    `unbound` (by this program or by an administrator), `restored` (the service was restored from
    a backup), or `queue_recreated` (the queue was deleted and another of its name made).
    """

    code = "flow_gone"

    @property
    def reason(self) -> str:
        return str(self.problem.get("reason", "unknown"))


class Unauthorized(Refused):
    """The call needs a credential, and none or a wrong one was sent."""

    code = "unauthorized"


class Forbidden(Refused):
    """The credential is known but does not allow this."""

    code = "forbidden"


@dataclass(frozen=True)
class InvalidField:
    """One thing wrong in what was sent: its path (dotted), and what is wrong with it."""

    field: str
    message: str


class Invalid(Refused):
    """The service refused what was sent as invalid; `errors` names each field it objects to."""

    code = "invalid"

    @property
    def errors(self) -> Sequence[InvalidField]:
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


# ------------------------------------------------------------------ used wrongly in this process


class NotBound(CounterpoiseError):
    """The flow has not been opened, is not bound yet, or is closed."""

    code = "not_bound"


class UsedInAnotherProcess(CounterpoiseError):
    """A flow belongs to the process that opened it; a forked child has to open its own."""

    code = "other_process"


class _ByCode:
    classes: ClassVar[Mapping[str, type[Refused]]] = {
        kind.code: kind
        for kind in (
            QueueNotFound,
            QueueExists,
            QueueInUse,
            ResizeUnsettled,
            FlowNotFound,
            FlowGone,
            Unauthorized,
            Forbidden,
            Invalid,
        )
    }


_PASSING: Mapping[str, type[ServiceUnavailable]] = {
    kind.code: kind for kind in (TooManyRequests, Overtaken)
}
_TRANSIENT_STATUSES = frozenset({408, 425, 429})


def error_of(
    status: int, problem: Mapping[str, Any] | None, retry_after: float | None = None
) -> CounterpoiseError:
    """The exception for an answer that is not a success.

    `problem` is the decoded problem document, or None when the body was none: then nobody who
    speaks the contract answered.
    """
    if problem is None:
        if status >= 500 or status in _TRANSIENT_STATUSES:
            return ServiceFailed(f"the service answered HTTP {status}", retry_after)
        return NotCounterpoise(
            f"HTTP {status} without a problem document: is this address a Counterpoise service?"
        )
    message = str(problem.get("detail") or problem.get("title") or f"HTTP {status}")
    code = str(problem.get("code", ""))
    if code in _PASSING:
        return _PASSING[code](message, retry_after)
    if status == 503 or status in _TRANSIENT_STATUSES:
        return ServiceUnavailable(message, retry_after)
    if status >= 500:
        return ServiceFailed(message, retry_after)
    return _ByCode.classes.get(code, Refused)(message, status, problem)
