"""What consumers and publishers import: client, flow, publisher, logs and the Spark source."""
