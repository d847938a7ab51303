"""Typed settings, read from TOML."""
