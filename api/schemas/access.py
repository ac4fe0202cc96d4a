"""Sessions and the audit on the wire."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
)

from api.schemas.common import (
    EXAMPLE_TIME,
    AnswerModel,
    Page,
    RequestModel,
    Time,
    moment,
    with_times,
)
from broker.core.access import Role

KeyId = Annotated[str, Field(examples=["3f9a0c51d7e2"])]


class LogIn(RequestModel):
    """The key to log in with."""

    key: Annotated[str, StringConstraints(min_length=1, max_length=200)] = Field(
        description="The whole key, `cp_<id>_<secret>`."
    )


class Session(AnswerModel):
    """Who the caller is."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "key_id": "3f9a0c51d7e2",
                    "name": "grafana",
                    "role": "viewer",
                    "queues": ["team-a.*"],
                    "expires_at": "2026-11-20T22:00:00.250Z",
                }
            ]
        }
    )

    key_id: KeyId | None = Field(description="The public id of the key; null without one.")
    name: str | None = Field(description="The name of the key; null without one.")
    role: Role
    queues: list[str] = Field(description="The patterns of the queues that the key is for.")
    expires_at: Time | None = Field(
        description="The end of the session, or of the key; null if it has none."
    )


Moment = Annotated[
    datetime,
    PlainValidator(moment),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": [EXAMPLE_TIME]}),
]


class NewKey(RequestModel):
    """A key to make."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"role": "consumer", "queues": ["team-a.*"], "name": "etl"}]
        }
    )

    role: Annotated[Role, Field(strict=False)]
    queues: list[Annotated[str, StringConstraints(min_length=1, max_length=200)]] = Field(
        ["*"],
        min_length=1,
        max_length=100,
        description="Patterns of the queues that it is for (`*`: any characters, `?`: one).",
    )
    name: Annotated[str, StringConstraints(max_length=200)] = Field(
        "", description="Who or what it is for."
    )
    ends_at: Moment | None = Field(None, description="When it ends; null: never.")


class Key(AnswerModel):
    """A key, without its secret."""

    id: KeyId
    name: str
    role: str
    queues: list[str] = Field(description="The patterns of the queues that it is for.")
    created_at: Time
    ends_at: Time | None
    revoked_at: Time | None
    last_used_at: Time | None = Field(description="To about a minute.")
    state: str = Field(description="`valid`, `ended` or `revoked`.", examples=["valid"])


class MadeKey(Key):
    """A new key. Its text is in this answer only."""

    key: str = Field(description="The key, `cp_<id>_<secret>`; the service stores its hash.")
    is_first: bool = Field(description="Whether it has just closed the service to callers without.")


class KeyPage(Page[Key]):
    """Keys, in the order in which they were made."""


AuditedCall = Literal[
    "create_queue",
    "change_queue",
    "delete_queue",
    "rebalance_now",
    "add_children",
    "split_partition",
    "merge_partitions",
    "set_positions",
    "unbind",
    "drain",
    "create_key",
    "revoke_key",
]


Audited = Annotated[dict[str, Any], PlainSerializer(with_times, return_type=dict[str, Any])]


class AuditItem(AnswerModel):
    """An administrative call."""

    id: int
    at: Time = Field(description="When it was committed.")
    call: AuditedCall = Field(description="The operation; that of a key has no queue.")
    queue: str | None
    flow_id: str | None = Field(description="With `unbind` and `drain`.")
    key_id: str | None = Field(description="The caller's key; null without one.")
    key_name: str | None
    address: str | None = Field(description="The caller's network address.")
    before: Audited | None = Field(description="The state before; null if there was none.")
    after: Audited | None = Field(description="The state after; null if there is none.")


class AuditPage(Page[AuditItem]):
    """Administrative calls, newest first."""
