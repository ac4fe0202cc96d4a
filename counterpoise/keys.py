"""The partition of a key.

CRC-32 of the key's UTF-8 bytes modulo the partition count (the contract, *Logs*). This is
librdkafka's consistent partitioner, so that programs in other languages can use the same rule.
Where partitions have ranges of hashes, the CRC-32 itself decides (`counterpoise.logs.ranges`).
"""

from __future__ import annotations

from zlib import crc32


def partition_of(key: str, partition_count: int) -> int:
    """The partition, 0..partition_count-1, of all messages with this key.

    Raises ValueError if the count is not positive or the key is not valid Unicode (lone
    surrogates have no UTF-8 form).
    """
    if partition_count < 1:
        raise ValueError(f"partition_count must be at least 1, not {partition_count}")
    return hash_of(key) % partition_count


def hash_of(key: str) -> int:
    """The hash of a key, 0 .. 2**32 - 1. Raises ValueError for lone surrogates."""
    return crc32(key.encode())
