"""Encoding of plain values, and decoding of forged bytes."""

import math
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple

import pytest

from trl_spiral.sandbox.values import MAX_DEPTH, Malformed, NotPlain, TooLarge, decode, encode, split


VALUES = [
    None,
    True,
    False,
    0,
    -1,
    127,
    128,
    -128,
    -129,
    2**64,
    -(10**4000),
    0.0,
    -0.0,
    math.inf,
    5e-324,
    complex(-0.0, 1.5),
    "",
    "é\u2028\0",
    "\ud800",
    b"",
    b"\xff\0",
    [],
    (),
    {},
    set(),
    frozenset(),
    [(1, "a"), {"k": [None, {1.5: b""}]}, {frozenset({1}), frozenset()}, ({(1, 2): set()},)],
    {1: 1, "1": True, None: False},
]


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


class TestEncode:
    @pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
    def test_round_trip_keeps_value_and_type(self, value):
        back = decode(encode(value, 10_000))

        # `True == 1` and `0.0 == -0.0`, and sets have no order.
        assert back == value
        assert type(back) is type(value)
        assert isinstance(value, set) or repr(back) == repr(value)

    def test_round_trip_keeps_nan(self):
        assert math.isnan(decode(encode(math.nan, 100)))

    @pytest.mark.parametrize("kind", [OrderedDict, Counter, lambda pairs: defaultdict(list, pairs)])
    def test_dict_types_become_dicts(self, kind):
        back = decode(encode(kind({"a": 1}), 100))

        assert type(back) is dict
        assert back == {"a": 1}

    def test_shared_objects_are_copied(self):
        shared = [1]
        first, second = decode(encode([shared, shared], 100))

        assert first == second == [1]
        assert first is not second

    @pytest.mark.parametrize(
        "value",
        [
            object(),
            len,
            range(3),
            deque([1]),
            bytearray(b"a"),
            memoryview(b"a"),
            (i for i in ()),
            NotImplemented,
            type("I", (int,), {"__eq__": lambda *_: True, "__hash__": int.__hash__})(1),
            type("S", (str,), {})("a"),
            type("L", (list,), {})(),
            type("D", (dict,), {})(),
            namedtuple("N", "a")(1),
            [{(1, (object(),))}],
            {object(): 1},
            10**4300,  # one digit more than Python prints
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_refuses_values_that_are_not_plain(self, value):
        with pytest.raises(NotPlain):
            encode(value, 10_000)

    def test_refuses_values_that_are_nested_too_deeply(self):
        deep = nested(MAX_DEPTH)
        ring = []
        ring.append(ring)

        assert decode(encode(deep, 10_000)) == deep
        with pytest.raises(NotPlain, match="nested"):
            encode([deep], 10_000)
        with pytest.raises(NotPlain, match="contains itself"):
            encode(ring, 10_000)

    def test_stops_at_the_limit(self):
        tree = []
        for _ in range(MAX_DEPTH - 1):  # 2**99 lists if all are written
            tree = [tree, tree]

        assert len(encode("a" * 95, 100)) == 100
        for value in ("a" * 96, b"a" * 96, list(range(20)), tree):
            with pytest.raises(TooLarge):
                encode(value, 100)


class TestDecode:
    @pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
    def test_refuses_truncated_and_extended_bytes(self, value):
        data = encode(value, 10_000)

        for end in range(len(data)):
            with pytest.raises(Malformed):
                decode(data[:end])
        with pytest.raises(Malformed, match="followed"):
            decode(data + b"N")

    @pytest.mark.parametrize(
        "data",
        [
            b"x",
            b"l\xff\xff\xff\xffN",  # announces more than four billion members
            b"s\0\0\0\1\xff",  # not UTF-8
            b"S\0\0\0\1l\0\0\0\0",  # a list in a set
            b"d\0\0\0\1S\0\0\0\0N",  # a set as a key
            b"l\0\0\0\1" * 200 + b"N",  # nested too deeply
            b"i\0\0\x10\0" + b"\x7f" * 4096,  # a number too long to print
        ],
    )
    def test_refuses_malformed_bytes(self, data):
        with pytest.raises(Malformed):
            decode(data)

    @pytest.mark.parametrize("letter", [b"S", b"Z", b"d"])
    def test_refuses_many_members_with_equal_hashes(self, letter):
        def data(step, count):
            pair = b"N" if letter == b"d" else b""
            items = (encode(step * number, 100) + pair for number in range(count))
            return letter + count.to_bytes(4, "big") + b"".join(items)

        alike = sys.hash_info.modulus

        assert len(decode(data(1, 1000))) == 1000
        assert len(decode(data(alike, 90))) == 90
        with pytest.raises(Malformed, match="same hash"):
            decode(data(alike, 1000))

    def test_random_changes_of_bytes_raise_only_malformed(self):
        rng = random.Random(0)
        whole = encode(VALUES[-2:], 10_000)

        refused = 0
        for _ in range(3000):
            data = bytearray(whole)
            for _ in range(rng.randint(1, 3)):
                data[rng.randrange(len(data))] = rng.choice(b"NTFifcsbltdSZ\0\1\2\xff")
            try:
                decode(bytes(data))
            except Malformed:
                refused += 1

        assert 1000 < refused < 3000


class TestSplit:
    def test_removes_complete_messages_only(self):
        read = bytearray(b"\0\0\0\1a\0\0\0\0\0\0\0\2b")

        assert split(read) == [b"a", b""]
        assert read == b"\0\0\0\2b"
        read += b"c"
        assert split(read) == [b"bc"]
        assert split(read) == []
