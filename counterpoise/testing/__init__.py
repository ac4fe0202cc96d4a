"""Test your own consumers and publishers without a server: see docs/testing.md.

    def test_each_order_is_stored_once(counterpoise_service):
        counterpoise_service.create_queue("orders", partitions=4)
        counterpoise_service.publish("orders", b"3 screws", key="c1")
        counterpoise_service.run(Consumer("orders", each=store))
        assert stored == [b"3 screws"]

`pip install 'counterpoise[testing]'` brings the service's wheel, on which this runs.
"""

from counterpoise.testing.exchanges import Killed
from counterpoise.testing.service import MemoryService, Rival

__all__ = ["Killed", "MemoryService", "Rival"]
