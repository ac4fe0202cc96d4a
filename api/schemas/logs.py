"""The requests for positions and for access to a log."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import (
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from api.schemas.common import (
    PartitionKey,
    Position,
    RequestModel,
    left_out,
    moment,
)
from broker.core.model import MOST_PARTITIONS
from counterpoise.wire import EXAMPLE_TIME


def _where(value: object) -> Literal["earliest", "latest"] | datetime:
    """An end of the log or a time of a request; pydantic would also accept numbers as times, and
    name each alternative as a field of its own."""
    if value == "earliest" or value == "latest":
        return value
    return moment(value, "'earliest', 'latest', or ")


Where = Annotated[
    Literal["earliest", "latest"] | datetime,
    PlainValidator(_where),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "enum": ["earliest", "latest"]},
                {"type": "string", "format": "date-time", "examples": [EXAMPLE_TIME]},
            ]
        }
    ),
]


class PositionsRequest(RequestModel):
    """The new positions: `to` for every partition, or `positions` for the named ones."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"to": "earliest"}, {"positions": {"0": "1042", "5": None}}],
            "minProperties": 1,
            "maxProperties": 1,
        }
    )

    to: Where = left_out(
        description="An end of the log, or a time: the first message published then or later.",
    )
    positions: dict[PartitionKey, Position | None] = left_out(
        min_length=1,
        max_length=MOST_PARTITIONS,
        description="Positions by partition number.",
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> "PositionsRequest":
        if len(self.model_fields_set) != 1:
            raise ValueError("give either 'to' or 'positions'")
        return self


class LogAccessRequest(RequestModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"purpose": "publish"}]})

    purpose: Literal["read", "publish"]
    refused: bool = Field(
        default=False,
        description="The log refused the credentials that the caller has: make others.",
    )
