"""Compaction of logs: of each key, only the newest record stays. Mirrors ``LogCleaner``."""
