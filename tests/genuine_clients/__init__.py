"""Clients nobody here wrote, against a cluster that lives as long as these tests."""
