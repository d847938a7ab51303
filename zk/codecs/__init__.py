"""The data of znodes: bytes to values and back."""
