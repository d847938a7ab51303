"""Clients of other projects, against a cluster that lives as long as these tests."""
