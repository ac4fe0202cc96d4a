"""The request to pin a partition."""

from pydantic import ConfigDict, Field

from api.schemas.common import RequestModel, left_out
from api.schemas.flows import Name
from api.schemas.pauses import Reason


class PinRequest(RequestModel):
    """To which consumer, and why."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"client_name": "etl"},
                {"client_name": "etl", "reason": "its cache has these customers"},
            ]
        }
    )

    client_name: Name = Field(
        description="The name with which the consumer binds. Of several flows of this name the "
        "earliest bound is meant; none need be bound."
    )
    reason: Reason = left_out(description="Shown to those who see the pin.")
