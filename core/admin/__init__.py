"""Requests about topics and configurations: validation and decisions."""
