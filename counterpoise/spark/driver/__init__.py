"""What runs in the driver, beside the query: events, draining, what monitoring sees."""
