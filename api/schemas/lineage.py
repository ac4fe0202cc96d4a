"""The requests to split and merge partitions."""

from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from api.schemas.common import PartitionNumber, RequestModel


class SplitRequest(RequestModel):
    """Where to split the range of a partition."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{}, {"at": "load"}, {"at": "c0000000"}]}
    )

    at: Annotated[str, StringConstraints(pattern=r"^(middle|load|[0-9a-f]{8})$")] = Field(
        default="middle",
        description="`middle` of the range; `load`: the keys of the last messages lie half on "
        "either side; or the first hash of the upper part, as eight hexadecimal digits.",
    )


class MergeRequest(RequestModel):
    """The partition to merge with, whose range lies beside."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"with": 8}]})

    other: PartitionNumber = Field(alias="with")
