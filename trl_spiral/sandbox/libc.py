"""System calls without a function in Python."""

from __future__ import annotations

import ctypes
import os
from functools import cache


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def system_call(number: int, *arguments: int | ctypes.c_char_p | ctypes.Array[ctypes.c_char] | None) -> int:
    """
    Make a system call. Integers are passed as machine words.

    Raises:
        OSError: If the call fails.
    """
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return _checked(_library().syscall(ctypes.c_long(number), *words))


def prctl(option: int, *arguments: int | ctypes.c_char_p) -> int:
    """
    Change or query an attribute of the calling process.

    Raises:
        OSError: If the call fails.
    """
    words = [ctypes.c_ulong(each) if isinstance(each, int) else each for each in arguments]
    return _checked(_library().prctl(option, *words, *[ctypes.c_ulong(0)] * (4 - len(words))))


def leave(status: int) -> None:
    """End this process at once, without handlers or flushing."""
    _library()["_exit"](status)


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
