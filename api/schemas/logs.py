"""The wire models of positions and of access to a log (`api.schemas` explains their rules)."""

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
    EXAMPLE_TIME,
    AnswerModel,
    Epoch,
    PartitionKey,
    PartitionNumber,
    Position,
    RequestModel,
    ShownPosition,
    Time,
    left_out,
    moment,
)
from broker.core.model import MOST_PARTITIONS


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


class PositionSet(AnswerModel):
    partition: PartitionNumber
    epoch: Epoch
    position: ShownPosition | None
    previous: ShownPosition | None = Field(
        default=None, description="In a dry run, the position as it is. Null without one."
    )
    read_again: int | None = Field(
        default=None,
        description="In a dry run, the most messages before `previous` that would be read again. "
        "Null if the log does not answer.",
    )
    skipped: int | None = Field(
        default=None,
        description="In a dry run, the most messages that would never be read. Null if the log "
        "does not answer.",
    )


class Positions(AnswerModel):
    """The partitions whose position was set, each with its raised epoch; in a dry run, those whose
    position would be set, each with its epoch as it is."""

    revision: int
    partitions: list[PositionSet]


class LogAccessRequest(RequestModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"purpose": "publish"}]})

    purpose: Literal["read", "publish"]
    refused: bool = Field(
        default=False,
        description="The log refused the credentials that the caller has: make others.",
    )


class LogCredentials(AnswerModel):
    """Short-lived credentials for the built-in log."""

    url: str = Field(
        description="With user and password: do not log it.",
        examples=["postgresql://counterpoise_read_7:…@127.0.0.1:41000/counterpoise"],
    )
    expires_at: Time


class LogAccess(AnswerModel):
    """Address of and credentials for a queue's log."""

    log: str = Field(examples=["builtin:flights"])
    log_name: str | None = Field(
        description="The built-in log's name; null for other logs.", examples=["flights"]
    )
    partition_count: int = Field(description="An append has to name this count.")
    access: LogCredentials | None = Field(
        description="Null when the log is not built in, or the service may not create roles in its "
        "database: the consumer then has to bring its own credentials."
    )
