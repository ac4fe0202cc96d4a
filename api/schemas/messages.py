"""The request to publish a message."""

import base64
import binascii
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from api.schemas.common import Position, QueueName, RequestModel
from broker.core.model import MOST_PARTITIONS
from counterpoise.logs import Message

MOST_LETTERS = 100
ID_PATTERN = r"^[A-Za-z0-9._-]{1,200}$"


class DeadLetterRequest(RequestModel):
    """A message that is to be put aside."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"position": "1042", "to": "flights-dead"}]}
    )

    position: Position = Field(description="That of the message.")
    to: QueueName = Field(description="The queue of dead letters.")


class RedriveRequest(RequestModel):
    """Which letters go back, and where."""

    model_config = ConfigDict(json_schema_extra={"examples": [{}, {"to": "flights-mended"}]})

    to: QueueName | None = Field(
        None, description="Null: each goes to the queue that it comes from."
    )
    max_messages: Annotated[int, Field(ge=1, le=MOST_LETTERS)] = Field(
        MOST_LETTERS, description="The most letters to send."
    )


class PublishRequest(RequestModel):
    """One message: its value as text or in base64."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"value": '{"total": 3}', "key": "c1", "headers": {"trace": "t-1"}},
                {"value_base64": "/wA=", "partition": 2, "id": "fix-42"},
            ]
        }
    )

    value: str | None = Field(None, description="The value as text.")
    value_base64: str | None = Field(None, description="The value in base64, instead of `value`.")
    key: str | None = Field(None, description="Decides the partition; null: a message without.")
    headers: dict[str, str] = Field({}, max_length=100, description="Names and texts.")
    partition: Annotated[int, Field(ge=0, lt=MOST_PARTITIONS)] | None = Field(
        None, description="Of a message without a key; null: the service chooses one."
    )
    id: Annotated[str, StringConstraints(pattern=ID_PATTERN)] | None = Field(
        None, description="A call that is repeated with the same id publishes the message once."
    )

    @model_validator(mode="before")
    @classmethod
    def _one_value(cls, given: Any) -> Any:
        if isinstance(given, dict) and (given.get("value") is None) == (
            given.get("value_base64") is None
        ):
            raise ValueError("give either value or value_base64")
        return given

    @model_validator(mode="after")
    def _decoded(self) -> Self:
        if self.value_base64 is not None:
            try:
                base64.b64decode(self.value_base64, validate=True)
            except (binascii.Error, ValueError):
                raise ValueError("value_base64 is no base64") from None
        return self

    @property
    def message(self) -> Message:
        """The message, as a log takes it."""
        if self.value is not None:
            value = self.value.encode()
        else:
            assert self.value_base64 is not None
            value = base64.b64decode(self.value_base64)
        return Message(value, self.key, self.headers)
