"""Brokers that come, go, shut down or are ill, as the controller sees them."""
