"""Spark jobs over the whole cluster's assignment."""
