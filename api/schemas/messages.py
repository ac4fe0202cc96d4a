"""The wire models of messages that people look at.

A value is text or bytes, which only its publisher knows. What is valid UTF-8 is shown as text, and
all else in base64.
"""

import base64
import codecs

from pydantic import ConfigDict, Field

from api.schemas.common import EXAMPLE_TIME, AnswerModel, ShownPosition, Time, absent
from broker.logs.peeking import Peek, PeekedMessage


class ShownMessage(AnswerModel):
    """A message of a log; of a long one its beginning."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "position": "1042",
                    "published_at": EXAMPLE_TIME,
                    "key": "customer-17",
                    "headers": {"trace": "t-1"},
                    "size_bytes": 12,
                    "value": '{"total": 3}',
                }
            ]
        }
    )

    position: ShownPosition
    published_at: Time | None = Field(description="Null: a time that no calendar has.")
    key: str | None = Field(description="At most `max_bytes` characters; null without a key.")
    headers: dict[str, str] | None = Field(
        description="Null if they are longer than `max_bytes` in all."
    )
    size_bytes: int = Field(ge=0, description="The size of the whole value.")
    value: str | None = Field(
        default=None,
        exclude_if=absent,
        description="At most `max_bytes` of the value, if that is text; left out otherwise.",
    )
    value_base64: str | None = Field(
        default=None,
        exclude_if=absent,
        description="The same of a value that is no text.",
    )

    @classmethod
    def of(cls, message: PeekedMessage) -> "ShownMessage":
        """The message with its value as text, or in base64."""
        whole = len(message.value) == message.size_bytes
        try:
            # A character at the cut may be incomplete.
            text = codecs.getincrementaldecoder("utf-8")().decode(message.value, final=whole)
            value: dict[str, str] = {"value": text}
        except UnicodeDecodeError:
            value = {"value_base64": base64.b64encode(message.value).decode()}
        return cls(
            position=message.position,
            published_at=message.published_at,
            key=message.key,
            headers=None if message.headers is None else dict(message.headers),
            size_bytes=message.size_bytes,
            **value,
        )


class ShownMessages(AnswerModel):
    """Messages of a partition, in order."""

    partition: int
    start: ShownPosition = Field(description="The first position that is in the log.")
    end: ShownPosition = Field(description="The position of the next message to be appended.")
    messages: list[ShownMessage]
    following: ShownPosition = Field(description="The `position` for the next call.")

    @classmethod
    def of(cls, partition: int, peek: Peek) -> "ShownMessages":
        """The answer."""
        return cls(
            partition=partition,
            start=peek.start,
            end=peek.end,
            messages=[ShownMessage.of(message) for message in peek.messages],
            following=peek.following,
        )
