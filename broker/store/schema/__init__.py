"""What all statements share: the tables, and rows in parameters."""
