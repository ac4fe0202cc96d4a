"""The reports of conditions."""

from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from api.schemas.common import (
    TEXT_PATTERN,
    Epoch,
    PartitionNumber,
    RequestModel,
    left_out,
)
from counterpoise.wire import MOST_INT64

MOST_CONDITIONS = 1000
MOST_TEXT_CHARACTERS = 300

Kind = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z][a-z_]{0,39}$"),
    Field(
        description="`quarantined`, `log_away`, `rows_dropped`, `state_lost`, `invalid_position` "
        "or `end_refused`; later clients may report others.",
        examples=["quarantined"],
    ),
]
Text = Annotated[
    str,
    StringConstraints(max_length=MOST_TEXT_CHARACTERS, pattern=TEXT_PATTERN),
    Field(
        description="The details in plain words.", examples=["at 1042: ValueError: not a number"]
    ),
]


class ReportedCondition(RequestModel):
    """A condition of one partition, under the epoch in which it came, or of the whole flow."""

    kind: Kind
    text: Text
    partition: PartitionNumber = left_out(
        description="The partition; left out: the condition is of the whole consumer."
    )
    epoch: Epoch = left_out(description="With `partition`: its epoch.")

    @model_validator(mode="after")
    def _both(self) -> "ReportedCondition":
        if ("partition" in self.model_fields_set) != ("epoch" in self.model_fields_set):
            raise ValueError("give partition and epoch together, or neither")
        return self


class ConditionsReport(RequestModel):
    """All conditions of a flow. What an earlier report named and this one does not is over."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "seq": 2,
                    "conditions": [
                        {
                            "kind": "quarantined",
                            "text": "at 1042: ValueError: not a number",
                            "partition": 5,
                            "epoch": 3,
                        }
                    ],
                }
            ]
        }
    )

    seq: Annotated[int, Field(ge=0, le=MOST_INT64)] = Field(
        description="Raised with every report of the flow; a report with an equal or lower one "
        "changes nothing."
    )
    conditions: Annotated[
        list[ReportedCondition], Field(max_length=MOST_CONDITIONS, fail_fast=True)
    ]
