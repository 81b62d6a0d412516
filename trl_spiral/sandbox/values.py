"""
Plain values as bytes: results of programs, and every message between the processes of a sandbox.

Pickle would run code, and JSON has no tuples, sets or bytes. A value is a letter and its content: nothing (`N`, `T`,
`F`), eight or sixteen bytes (`f`, `c`), or a count of four bytes followed by that many bytes (`i`, `s`, `b`) or values
(`l`, `t`, `d`, `S`, `Z`). Integers are in two's complement. The helper process imports this module without
site-packages.
"""

from __future__ import annotations

import os
import struct
from collections import Counter, OrderedDict, defaultdict
from typing import Any


MAX_DEPTH = 100  # of lists in lists; far below the 1000 calls that Python allows by default
MOST_ALIKE = 100  # members of a set, or keys, with the hash of another; adding many of them takes quadratic time
MOST_BITS = 14_280  # of an integer; Python prints at most 4300 digits, and results are printed
DICTS = (dict, OrderedDict, Counter, defaultdict)  # types that compare equal to a dict; all are encoded as one

_CONTAINERS: dict[type, bytes] = {list: b"l", tuple: b"t", set: b"S", frozenset: b"Z"}
_COUNT = struct.Struct(">I")
_FLOAT = struct.Struct(">d")


class NotPlain(TypeError):
    """A value has another type than the plain ones, is nested too deeply, or contains itself."""


class TooLarge(ValueError):
    """A value exceeds its limit of bytes."""


class Malformed(ValueError):
    """Bytes are not what [`encode`] writes."""


def encode(value: object, limit: int) -> bytes:
    """
    Encode a value into at most `limit` bytes.

    The value is `None`, a `bool`, `int` of up to 4298 digits, `float`, `complex`, `str`, `bytes`, or a nested `list`,
    `tuple`, `dict`, `set` or `frozenset`, of exactly these types. Dict types of the standard library become a `dict`.

    Raises:
        NotPlain: If a part has another type, is a longer number, or is nested more than 100 deep.
        TooLarge: If the result exceeds the limit.
    """
    parts: list[bytes] = []
    room = limit

    def put(part: bytes) -> None:
        nonlocal room
        room -= len(part)
        if room < 0:
            raise TooLarge(f"a value takes more than {limit} bytes")
        parts.append(part)

    def put_bytes(letter: bytes, data: bytes) -> None:
        if len(data) > room:  # before the length, which might not fit into four bytes
            raise TooLarge(f"a value takes more than {limit} bytes")
        put(letter + _COUNT.pack(len(data)) + data)

    def walk(item: Any, depth: int) -> None:
        kind = type(item)
        if depth > MAX_DEPTH:
            raise NotPlain(f"a value is nested more than {MAX_DEPTH} deep, or contains itself")
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
        elif kind is list or kind is tuple or kind is set or kind is frozenset:  # not `==`: a metaclass may define it
            put(_CONTAINERS[kind] + _COUNT.pack(len(item)))
            for member in item:
                walk(member, depth + 1)
        elif kind in DICTS:
            put(b"d" + _COUNT.pack(len(item)))
            for key, held in item.items():
                walk(key, depth + 1)
                walk(held, depth + 1)
        else:
            raise NotPlain(f"`{kind.__name__}` is not a plain type")

    walk(value, 0)
    return b"".join(parts)


def decode(data: bytes) -> Any:
    """Decode a value from untrusted bytes. Raise [`Malformed`] if they are not what [`encode`] writes."""
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
        if count > len(data) - at:  # each member takes at least one byte
            raise Malformed("a value ends too early")
        return count

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
                _check_hashes([key for key, _ in pairs])
                return dict(pairs)
            case b"l" | b"t" as letter:
                return (list if letter == b"l" else tuple)([walk(depth + 1) for _ in range(take_count())])
            case b"S" | b"Z" as letter:
                items = [walk(depth + 1) for _ in range(take_count())]
                _check_hashes(items)
                return (set if letter == b"S" else frozenset)(items)
        raise Malformed("a value is of no known type")

    try:
        value = walk(0)
    except (UnicodeDecodeError, TypeError) as error:  # a list cannot be a key or in a set
        raise Malformed(str(error)) from error
    if at < len(data):
        raise Malformed("a value is followed by more bytes")
    return value


def _check_hashes(items: list[Any]) -> None:
    if len(items) - len({hash(item) for item in items}) > MOST_ALIKE:
        raise Malformed("too many members of a set, or keys, have the same hash")


def send(fd: int, data: bytes) -> None:
    """Write a message after its length. Block until all of it is sent."""
    rest = memoryview(_COUNT.pack(len(data)) + data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def receive(fd: int, limit: int) -> bytes:
    """
    Read one message. Block until it is there.

    Raises:
        EOFError: If the other side has closed the connection.
        Malformed: If its length exceeds `limit`.
    """
    size = _COUNT.unpack(_receive_exactly(fd, 4))[0]
    if size > limit:
        raise Malformed(f"a message has {size} bytes; the limit is {limit}")
    return _receive_exactly(fd, size)


def _receive_exactly(fd: int, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(fd, min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError("the other side has closed the connection")
        parts += part
    return bytes(parts)


def split(data: bytearray) -> list[bytes]:
    """Remove all complete messages from the front of a buffer and return them."""
    messages = []
    while len(data) >= 4 and len(data) >= 4 + (size := _COUNT.unpack_from(data)[0]):
        messages.append(bytes(data[4 : 4 + size]))
        del data[: 4 + size]
    return messages
