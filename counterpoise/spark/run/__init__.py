"""What runs in the query's own process, from its first offset to its end."""
