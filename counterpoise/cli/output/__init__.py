"""What the commands print: tables, JSON, progress, the picture of a queue."""
