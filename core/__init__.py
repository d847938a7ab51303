"""The part that decides: rules and state machines without clock, socket, thread or file."""
