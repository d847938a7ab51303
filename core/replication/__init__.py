"""Replication on a broker: leaders, followers and the control requests that assign these roles."""
