"""Random numbers, the same on every machine: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""

from __future__ import annotations

from typing import Final

_WORD: Final = 2**64 - 1


def splitmix64(seed: int, position: int) -> int:
    """Return one number of the sequence: 64 well-mixed bits of (seed, position)."""
    z = (seed + (position + 1) * 0x9E3779B97F4A7C15) & _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    return z ^ (z >> 31)
