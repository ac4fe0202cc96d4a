"""The wire models of lineage (`api.schemas` explains the rules)."""

from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from api.schemas.common import AnswerModel, PartitionNumber, Position, QueueName, RequestModel
from api.schemas.queues import PartitionState


class LineageNode(AnswerModel):
    """A partition in the graph of a dynamic queue."""

    partition: PartitionNumber
    key: str
    state: PartitionState
    owner: str | None = Field(description="The flow_id of its owner.")
    parents: list[str] = Field(
        description="The keys of the partitions that it follows. Those that are not listed "
        "themselves were finished and removed."
    )
    children: list[str] = Field(description="The keys of the partitions that follow it.")
    waits_for: list[PartitionNumber] = Field(description="Its parents that are not finished.")


class Lineage(AnswerModel):
    """A page of the graph: the partitions that exist, by number."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "queue": "orders",
                    "revision": 57,
                    "removed_count": 3,
                    "items": [
                        {
                            "partition": 7,
                            "key": "token-7",
                            "state": "waiting",
                            "owner": None,
                            "parents": ["token-3", "token-4"],
                            "children": [],
                            "waits_for": [4],
                        }
                    ],
                    "next_cursor": None,
                }
            ]
        }
    )

    queue: QueueName
    revision: int
    removed_count: int = Field(description="Keys that are remembered of removed partitions.")
    items: list[LineageNode]
    next_cursor: str | None = Field(
        description="Pass it as `cursor` for the next page; null on the last one."
    )


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


class SealedPartition(AnswerModel):
    """A partition that takes no messages any more."""

    partition: PartitionNumber
    end: Position = Field(description="Its final end in the log.")


class BegunPartition(AnswerModel):
    """A partition that follows sealed ones."""

    partition: PartitionNumber
    key: str = Field(description="`LO-HI.N`: its first and last hash, and its number.")
    parents: list[str] = Field(description="The keys of the sealed partitions.")


class Sealed(AnswerModel):
    """What a split or merge sealed, and what came of it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "sealed": [{"partition": 0, "end": "1042"}],
                    "children": [
                        {
                            "partition": 1,
                            "key": "00000000-7fffffff.1",
                            "parents": ["00000000-ffffffff.0"],
                        },
                        {
                            "partition": 2,
                            "key": "80000000-ffffffff.2",
                            "parents": ["00000000-ffffffff.0"],
                        },
                    ],
                }
            ]
        }
    )

    sealed: list[SealedPartition]
    children: list[BegunPartition]
