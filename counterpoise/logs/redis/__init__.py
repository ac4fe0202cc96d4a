"""The log in Redis Streams."""

from counterpoise.logs.redis.log import RedisLog

__all__ = ["RedisLog"]
