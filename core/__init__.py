"""All decisions: functions and state machines without clock, socket, thread or file."""
