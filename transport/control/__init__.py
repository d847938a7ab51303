"""The control port: msgpack over ZeroMQ, between brokers, and from tools to brokers."""
