"""What a micro-batch reads: the options, the offset, and pure rules of planning and progress."""
