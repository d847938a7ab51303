"""Decides everything, in functions and state machines without clock, socket, thread or file."""
