"""Publishing: `Publisher` buffers messages, and delivers them in order, each once."""

from counterpoise.publisher.delivery import PublisherIdInUse
from counterpoise.publisher.publisher import BufferFull, Publisher, PublisherClosed

__all__ = ["BufferFull", "Publisher", "PublisherClosed", "PublisherIdInUse"]
