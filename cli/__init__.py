"""The command line; it may import everything, and nothing imports it."""
