"""What Spark calls: the data source and its readers."""
