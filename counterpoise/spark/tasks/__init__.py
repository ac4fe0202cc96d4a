"""What tasks do: connect to the log and read slices of it."""
