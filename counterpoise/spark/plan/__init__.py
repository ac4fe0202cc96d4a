"""What a micro-batch reads: options, offsets, and pure rules of planning and progress."""
