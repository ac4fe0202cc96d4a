"""In the driver of Spark: how our part gets there, what is refused, how a query drains and leaves.

Start reading at `driver`: what is done once for a session. `listener` gives the progress to
monitoring, `draining` and `stopping` end queries in order, `refusals` and `stateful` refuse queries
that would lose messages or state, `chains` follows rows from queue to queue, and `environment`
finds a Java and a Python for Spark.
"""
