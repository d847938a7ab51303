"""One broker: the process, and how its parts are put together."""
