"""
Plain values as bytes: what programs answer, and every message between the processes of a sandbox.

Not pickle, which runs code, nor JSON, which knows no tuples, sets or bytes. A value is a letter, then what that letter
needs: nothing (`N`, `T`, `F`), eight or sixteen bytes (`f`, `c`), or a count of four bytes and so many bytes (`i`, `s`, `b`)
or so many values (`l`, `t`, `d`, `S`, `Z`). Whole numbers travel as two's complement. Standard library only: the helper process imports this without site-packages.
"""

from __future__ import annotations

import os
import struct
from collections import Counter, OrderedDict, defaultdict
from typing import Any


MAX_DEPTH = 100  # of lists in lists; far below the 1000 calls that Python allows by default
MOST_ALIKE = 100  # members of a set, or keys, with the hash of another; to add many of those takes quadratic time
MOST_BITS = 14_280  # of a whole number; Python prints no more than 4300 digits, and outcomes are printed
DICTS = (dict, OrderedDict, Counter, defaultdict)  # the kinds that `==` takes for a dict; all travel as one

_COUNT = struct.Struct(">I")
_FLOAT = struct.Struct(">d")


class NotPlain(TypeError):
    """A value is of a type that does not travel, is nested too deeply, or holds itself."""


class TooLarge(ValueError):
    """A value takes more bytes than it may."""


class Malformed(ValueError):
    """Bytes are not what [`encode`] writes."""


def encode(value: object, limit: int) -> bytes:
    """
    A value as bytes.

    Args:
        value (`object`):
            `None`, `bool`, `int`, `float`, `complex`, `str`, `bytes`, or `list`, `tuple`, `dict`, `set` or `frozenset` of such, of
            exactly these types, whole numbers of up to 4298 digits. The standard library's kinds of `dict` become a `dict`.
        limit (`int`):
            Most bytes it may take.

    Raises:
        NotPlain: If it, or something in it, is of another type or too long a number, or it is nested more than 100 deep.
        TooLarge: If it takes more bytes.
    """
    parts: list[bytes] = []
    room = limit

    def put(part: bytes) -> None:
        nonlocal room
        room -= len(part)
        if room < 0:
            raise TooLarge(f"a value takes more than {limit} bytes")
        parts.append(part)

    def put_all(letter: bytes, items: Any, depth: int) -> None:
        put(letter + _COUNT.pack(len(items)))
        for item in items:
            walk(item, depth + 1)

    def put_bytes(letter: bytes, data: bytes) -> None:
        if len(data) > room:  # before its length, which might not fit into four bytes
            raise TooLarge(f"a value takes more than {limit} bytes")
        put(letter + _COUNT.pack(len(data)) + data)

    def walk(item: Any, depth: int) -> None:
        kind = type(item)
        if depth > MAX_DEPTH:
            raise NotPlain(f"a value is nested more than {MAX_DEPTH} deep, or holds itself")
        if item is None:
            put(b"N")
        elif kind is bool:
            put(b"T" if item else b"F")
        elif kind is int:
            if item.bit_length() > MOST_BITS:
                raise NotPlain("a number has more digits than Python prints")
            put_bytes(b"i", item.to_bytes(item.bit_length() // 8 + 1, "big", signed=True))
        elif kind is float:
            put(b"f" + _FLOAT.pack(item))
        elif kind is complex:
            put(b"c" + _FLOAT.pack(item.real) + _FLOAT.pack(item.imag))
        elif kind is str:
            put_bytes(b"s", item.encode("utf-8", "surrogatepass"))
        elif kind is bytes:
            put_bytes(b"b", item)
        elif kind is list:
            put_all(b"l", item, depth)
        elif kind is tuple:
            put_all(b"t", item, depth)
        elif kind is set:
            put_all(b"S", item, depth)
        elif kind is frozenset:
            put_all(b"Z", item, depth)
        elif kind in DICTS:
            put(b"d" + _COUNT.pack(len(item)))
            for key, held in item.items():
                walk(key, depth + 1)
                walk(held, depth + 1)
        else:
            raise NotPlain(f"`{kind.__name__}` does not travel")

    walk(value, 0)
    return b"".join(parts)


def decode(data: bytes) -> Any:
    """
    The value that bytes hold, whoever wrote them.

    Raises:
        Malformed: If they are not what [`encode`] writes.
    """
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        part = data[at : at + size]
        if len(part) < size:
            raise Malformed("a value ends too early")
        at += size
        return part

    def take_count() -> int:
        count: int = _COUNT.unpack(take(4))[0]
        if count > len(data) - at:  # each thing counted takes a byte at least
            raise Malformed("a value ends too early")
        return count

    def check_hashes(items: list[Any]) -> None:
        if len(items) - len({hash(item) for item in items}) > MOST_ALIKE:
            raise Malformed("too many members of a set, or keys, have the same hash")

    def walk(depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise Malformed(f"a value is nested more than {MAX_DEPTH} deep")
        match take(1):
            case b"N":
                return None
            case b"T":
                return True
            case b"F":
                return False
            case b"i":
                number = int.from_bytes(take(take_count()), "big", signed=True)
                if number.bit_length() > MOST_BITS:
                    raise Malformed("a number has more digits than Python prints")
                return number
            case b"f":
                return _FLOAT.unpack(take(8))[0]
            case b"c":
                return complex(_FLOAT.unpack(take(8))[0], _FLOAT.unpack(take(8))[0])
            case b"s":
                return take(take_count()).decode("utf-8", "surrogatepass")
            case b"b":
                return take(take_count())
            case b"d":
                pairs = [(walk(depth + 1), walk(depth + 1)) for _ in range(take_count())]
                check_hashes([key for key, _ in pairs])
                return dict(pairs)
            case b"l" | b"t" as letter:
                return (list if letter == b"l" else tuple)([walk(depth + 1) for _ in range(take_count())])
            case b"S" | b"Z" as letter:
                items = [walk(depth + 1) for _ in range(take_count())]
                check_hashes(items)
                return (set if letter == b"S" else frozenset)(items)
        raise Malformed("a value is of no known kind")

    try:
        value = walk(0)
    except (UnicodeDecodeError, TypeError) as error:  # a list cannot be a key or in a set
        raise Malformed(str(error)) from error
    if at < len(data):
        raise Malformed("a value is followed by more bytes")
    return value


def send(fd: int, data: bytes) -> None:
    """Writes a message, its length first; waits until all of it is taken."""
    rest = memoryview(_COUNT.pack(len(data)) + data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def receive(fd: int, limit: int) -> bytes:
    """
    Reads one message, waiting for it.

    Raises:
        EOFError: If the other side is gone.
        Malformed: If it says to be longer than `limit`.
    """
    size = _COUNT.unpack(_receive_exactly(fd, 4))[0]
    if size > limit:
        raise Malformed(f"a message has {size} bytes; {limit} are allowed")
    return _receive_exactly(fd, size)


def _receive_exactly(fd: int, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(fd, min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError("the other side is gone")
        parts += part
    return bytes(parts)


def split(data: bytearray) -> list[bytes]:
    """Takes all whole messages off the front of what has been read so far."""
    messages = []
    while len(data) >= 4 and len(data) >= 4 + (size := _COUNT.unpack_from(data)[0]):
        messages.append(bytes(data[4 : 4 + size]))
        del data[: 4 + size]
    return messages
