"""The requests for sessions and keys."""

from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict, Field, PlainValidator, StringConstraints, WithJsonSchema

from api.schemas.common import RequestModel, moment
from broker.core.access import Role
from counterpoise.wire import EXAMPLE_TIME


class LogIn(RequestModel):
    """The key to log in with."""

    key: Annotated[str, StringConstraints(min_length=1, max_length=200)] = Field(
        description="The whole key, `cp_<id>_<secret>`."
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
