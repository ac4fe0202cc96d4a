"""The request to pause a queue or a partition."""

from datetime import datetime
from typing import Annotated

from pydantic import (
    ConfigDict,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from api.schemas.common import TEXT_PATTERN, RequestModel, left_out, moment
from counterpoise.wire import EXAMPLE_TIME, MOST_REASON

# A pause for longer has no end of its own.
MOST_SECONDS = 315_360_000.0

Until = Annotated[
    datetime,
    PlainValidator(moment),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": [EXAMPLE_TIME]}),
]
Reason = Annotated[
    str, StringConstraints(min_length=1, max_length=MOST_REASON, pattern=TEXT_PATTERN)
]


class PauseRequest(RequestModel):
    """How long, and why. Without an end the pause lasts until it is resumed."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {},
                {"reason": "the warehouse is restored"},
                {"seconds": 600, "reason": "the warehouse is restored"},
            ],
            "not": {"required": ["until", "seconds"]},
        }
    )

    until: Until = left_out(description="When the pause ends by itself: a time to come.")
    seconds: float = left_out(
        gt=0,
        le=MOST_SECONDS,
        description="In so many seconds it ends by itself, instead of `until`.",
    )
    reason: Reason = left_out(description="Shown to those who see the pause.")

    @model_validator(mode="after")
    def _one_end(self) -> "PauseRequest":
        if {"until", "seconds"} <= self.model_fields_set:
            raise ValueError("give one of 'until' and 'seconds'")
        return self
