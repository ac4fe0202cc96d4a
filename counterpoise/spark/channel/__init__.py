"""What a query's own process and its driver tell each other, and how."""
