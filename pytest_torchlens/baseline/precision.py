"""Rounds the numbers of a tensor to what a baseline keeps of them; needs no torch.

A comparison allows each operation an RMS of 3.8e-6 in float32, more in the half types, 4.5e-13 in float64
(`distance`).  A difference is the root of the squared differences of the sums of two sketches, so rounding adds what
two rounded sums are apart.  Where the largest sum has 25 bits that is at most 2**-23 of the values' RMS, a thirtieth of
that limit; float64 needs 47 bits, for 2**-45.  The statistics are for people, and to divide by: four digits suffice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pytest_torchlens.baseline.snapshot import BUCKETS
from pytest_torchlens.baseline.snapshot import Numbers
from pytest_torchlens.records import UNRESOLVED

DIGITS = 4
"""Decimal digits of the RMS; mean, lowest and highest value end at the same place."""
BITS = 26
"""Of a sum of the sketch, one bit of them the sign."""
BITS_FLOAT64 = 48
_EXPONENT = 2
"""Bytes of the exponent that the sums of a sketch share."""


def rounded(numbers: Numbers, *, is_float64: bool) -> Numbers:
    """Return numbers as a file keeps them: written and read back they are the same."""
    places = _decimal_places(numbers)
    mean, rms, low, high = (round(x, places) for x in (numbers.mean, numbers.rms, numbers.low, numbers.high))
    sketch = _rounded_sums(numbers.sketch, BITS_FLOAT64 if is_float64 else BITS)
    return replace(numbers, mean=mean, rms=rms, low=low, high=high, sketch=sketch)


def unit(numbers: Numbers) -> float:
    """Return the value of the last digit of rounded statistics."""
    return 10.0 ** -_decimal_places(numbers)


def resolution(*sketches: Sequence[float]) -> float:
    """Return the relative RMS below which two rounded sketches do not show how large a difference is."""
    return UNRESOLVED[any(_bits(sketch) == BITS_FLOAT64 for sketch in sketches)]


def least_difference(sketch: Sequence[float]) -> float:
    """Return the least difference of two sums of a rounded sketch."""
    return math.ldexp(1.0, _whole(sketch, _bits(sketch))[1])


def _bits(sketch: Sequence[float]) -> int:
    """Return how many bits a sum of a rounded sketch takes."""
    return BITS if _rounded_sums(sketch, BITS) == tuple(sketch) else BITS_FLOAT64


def _decimal_places(numbers: Numbers) -> int:
    size = numbers.rms or numbers.largest
    return DIGITS - 1 - math.floor(math.log10(size)) if size and math.isfinite(size) else 0


def folded(sums: Sequence[float]) -> tuple[float, ...]:
    """Return twice as many sums as a sketch has, or one less, added up in pairs: its signs are as random as theirs."""
    pairs = list(sums) + [0.0] * (2 * BUCKETS - len(sums))
    return tuple(first + second for first, second in zip(pairs[:BUCKETS], pairs[BUCKETS:], strict=True))


def _rounded_sums(sums: Sequence[float], bits: int) -> tuple[float, ...]:
    """Return sums as whole numbers of so many bits, times a power of two; none if one is not finite."""
    if not all(map(math.isfinite, sums)):
        return ()
    whole, exponent = _whole(sums, bits)
    return tuple(math.ldexp(number, exponent) for number in whole)


def _whole(sums: Sequence[float], bits: int) -> tuple[list[int], int]:
    """Return sums as whole numbers of so many bits, and the exponent of two that they are to be multiplied by."""
    largest = max(map(abs, sums), default=0.0)
    exponent = math.frexp(largest)[1] - (bits - 1) if largest else 0
    most = 2 ** (bits - 1) - 1
    return [max(-most, min(most, round(math.ldexp(number, -exponent)))) for number in sums], exponent


def pack(sketch: Sequence[float]) -> bytes:
    """Return a rounded sketch in as few bytes as hold it exactly: the exponent, then the sums one after the other."""
    bits = _bits(sketch)
    whole, exponent = _whole(sketch, bits)
    joined: int = sum((number % 2**bits) << (bits * place) for place, number in enumerate(whole))
    return exponent.to_bytes(_EXPONENT, "little", signed=True) + joined.to_bytes(bits * BUCKETS // 8, "little")


def unpack(packed: bytes) -> tuple[float, ...]:
    """Return the sketch that `pack` wrote.

    Raises
    ------
    ValueError, OverflowError
        If the bytes are not such a sketch.
    """
    bits, rest = divmod(8 * (len(packed) - _EXPONENT), BUCKETS)
    if bits not in (BITS, BITS_FLOAT64) or rest:
        raise ValueError(f"expected {BUCKETS} sums, got {len(packed)} bytes")
    exponent = int.from_bytes(packed[:_EXPONENT], "little", signed=True)
    joined = int.from_bytes(packed[_EXPONENT:], "little")
    whole = [(joined >> (bits * place)) % 2**bits for place in range(BUCKETS)]
    return tuple(math.ldexp(number - (number >> (bits - 1) << bits), exponent) for number in whole)
