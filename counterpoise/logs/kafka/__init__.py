"""The log in a Kafka topic."""

from counterpoise.logs.kafka.log import KafkaLog
from counterpoise.logs.kafka.rows import record_headers
from counterpoise.logs.rows import raw_bytes

__all__ = ["KafkaLog", "raw_bytes", "record_headers"]
