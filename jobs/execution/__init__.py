"""Executes plans on a running cluster."""
