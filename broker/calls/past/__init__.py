"""What has happened to a queue, for people: its rebalances and what led to them."""
