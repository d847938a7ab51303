"""Logs on the disks of one broker: the log manager, the log directories, the checkpoints."""
