"""The Spark data source ``regent``: topics as DataFrames."""
