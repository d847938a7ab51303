"""Executes plans on a running cluster, wave by wave."""
