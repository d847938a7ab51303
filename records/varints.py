"""Numbers of variable length, as records of magic 2 have them.

The lowest seven bits come first, and the highest bit of a byte says that another one follows. A
number and its sign are one number without a sign: 0, -1, 1, -2, 2 … (zigzag).
"""

from __future__ import annotations

from regent.core.records import RecordBytes


def read_varint(data: RecordBytes, at: int, max_bytes: int = 10) -> tuple[int, int]:
    """Return a number, before ``signed``, and the position after it.

    Raises ``ValueError`` if it is too long, and ``IndexError`` if ``data`` ends in it.
    """
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    number = 0
    for shift in range(0, 7 * max_bytes, 7):
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise ValueError(f"a number of more than {max_bytes} bytes")


def varint(number: int) -> bytes:
    """Return the bytes of a number that is not negative."""
    if number < 128:
        return number.to_bytes()
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)


def signed(number: int) -> int:
    """Return what a number stands for."""
    return (number >> 1) ^ -(number & 1)


def zigzag(number: int) -> int:
    """Return the number that stands for one with a sign."""
    return number << 1 if number >= 0 else (-number << 1) - 1
