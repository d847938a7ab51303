"""Minimal-movement reassignment plans."""
