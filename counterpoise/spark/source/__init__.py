"""The classes that Spark calls: the data source and its readers."""
