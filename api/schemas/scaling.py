"""The wire model of the number for autoscalers (`api.schemas` explains the rules it follows)."""

from pydantic import ConfigDict, Field

from api.schemas.common import AnswerModel, QueueName


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
                }
            ]
        }
    )

    queue: QueueName
    consumers: int = Field(description="So many; never more than partitions.")
    why: str = Field(
        description="`lag` (it demands them), `holding` (the queue is not Ready), `quiet` (it was "
        "changed not long ago), `shrinking` (one is not needed), `unknown` (the log does not say "
        "the lag); later versions may add others."
    )
    present: int = Field(description="Bound flows that do not drain.")
    partition_count: int
    lag: int | None = Field(
        description="Messages that are not processed yet, at most; some seconds old."
    )
