"""The Spark data source, and what it needs to run where there is no Java."""
