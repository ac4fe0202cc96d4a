"""The wire models of conditions, and of the number of consumers for autoscalers."""

from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from api.schemas.common import (
    EXAMPLE_FLOW,
    EXAMPLE_TIME,
    MOST_INT64,
    TEXT_PATTERN,
    AnswerModel,
    Epoch,
    Page,
    PartitionNumber,
    QueueName,
    RequestModel,
    Time,
    left_out,
)

MOST_CONDITIONS = 1000
MOST_TEXT_CHARACTERS = 300

Kind = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z][a-z_]{0,39}$"),
    Field(
        description="`quarantined`, `log_away`, `rows_dropped`, `invalid_position` or "
        "`end_refused`; later clients may report others.",
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


class MeasuredQueue(AnswerModel):
    """A queue at a time of the last hour."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"at": EXAMPLE_TIME, "lag": 120, "published": 41.5, "processed": 40.0}]
        }
    )

    at: Time
    lag: int | None = Field(
        ge=0, description="Messages that are not processed yet, at most; null if not known."
    )
    published: float | None = Field(
        ge=0, description="Messages a second since the measurement before; null if not known."
    )
    processed: float | None = Field(ge=0, description="As `published`.")


class Measurements(AnswerModel):
    """The last hour of a queue."""

    items: list[MeasuredQueue] = Field(description="In order, about two a minute.")


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


class Condition(AnswerModel):
    """A condition that holds, and the consumer that reports it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "kind": "quarantined",
                    "text": "at 1042: ValueError: not a number",
                    "partition": 5,
                    "epoch": 3,
                    "since": EXAMPLE_TIME,
                    "flow_id": EXAMPLE_FLOW,
                    "client_name": "etl-1",
                }
            ]
        }
    )

    kind: str
    text: str
    partition: PartitionNumber | None = Field(
        description="The partition; null: the condition is of the whole consumer."
    )
    epoch: Epoch | None
    since: Time = Field(description="When it was reported first.")
    flow_id: str | None = Field(description="Null: the service itself reports it.")
    client_name: str


class ConditionPage(Page[Condition]):
    """Conditions: of whole consumers first, then by partition."""


class Scaling(AnswerModel):
    """How many consumers a queue should have."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "queue": "flights",
                    "consumers": 5,
                    "why": "lag",
                    "present": 4,
                    "partition_count": 8,
                    "lag": 4210,
                    "lag_seconds": 8.5,
                }
            ]
        }
    )

    queue: QueueName
    consumers: int = Field(description="So many; never more than partitions.")
    why: str = Field(
        description="`lag` (it demands them), `age` (a message is too old for fewer), `holding` "
        "(the queue is not Ready), `quiet` (it was changed not long ago), `shrinking` (fewer are "
        "enough), `unknown` (the log does not say the lag); later versions may add others."
    )
    present: int = Field(description="Bound flows that do not drain.")
    partition_count: int
    lag: int | None = Field(
        description="Messages that are not processed yet, at most; some seconds old."
    )
    lag_seconds: float | None = Field(
        description="The age of the oldest of them, 0 without any; some seconds old. Null if the "
        "log does not say it."
    )
