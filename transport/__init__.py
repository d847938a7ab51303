"""Bytes between processes: ZeroMQ frames, msgpack bodies, remote actor references."""
