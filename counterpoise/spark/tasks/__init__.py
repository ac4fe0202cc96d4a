"""What tasks do: reach the log, and read slices of it."""
