"""What runs in the driver in addition to the query: events, draining, monitoring."""
