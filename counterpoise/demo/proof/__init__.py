"""Whether the demo kept the promises: the evidence it left, the verdict on it, and the report."""
