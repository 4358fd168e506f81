"""CityHash64 in its first version, by which catboost knows categories.

Source: CityHash 1.0 (G. Pike and J. Alakuijala, 2011).
"""

from __future__ import annotations

_K0, _K1, _K2, _K3 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F, 0xC949D7C7509E6557
_MULTIPLIER = 0x9DDFEA08EB382D69
_MASK = (1 << 64) - 1


def _fetch(data: bytes, start: int, size: int = 8) -> int:
    return int.from_bytes(data[start : start + size], "little")


def _rotated(value: int, shift: int) -> int:
    value &= _MASK
    return ((value >> shift) | (value << (64 - shift))) & _MASK if shift else value


def _mixed(value: int) -> int:
    value &= _MASK
    return value ^ (value >> 47)


def _pair(low: int, high: int) -> int:
    a = _mixed((low ^ high) * _MULTIPLIER)
    return (_mixed((high ^ a) * _MULTIPLIER) * _MULTIPLIER) & _MASK


def _short(data: bytes) -> int:
    size = len(data)
    if size > 8:
        a, b = _fetch(data, 0), _fetch(data, size - 8)
        return _pair(a, _rotated(b + size, size)) ^ b
    if size >= 4:
        return _pair((size + (_fetch(data, 0, 4) << 3)) & _MASK, _fetch(data, size - 4, 4))
    if not size:
        return _K2
    y = data[0] + (data[size >> 1] << 8)
    z = size + (data[-1] << 2)
    return (_mixed(y * _K2 ^ z * _K3) * _K2) & _MASK


def _up_to_32(data: bytes) -> int:
    size = len(data)
    a, b = _fetch(data, 0) * _K1, _fetch(data, 8)
    c, d = _fetch(data, size - 8) * _K2, _fetch(data, size - 16) * _K0
    first = _rotated(a - b, 43) + _rotated(c, 30) + d
    return _pair(first & _MASK, (a + _rotated(b ^ _K3, 20) - c + size) & _MASK)


def _up_to_64(data: bytes) -> int:
    size = len(data)
    z = _fetch(data, 24)
    a = _fetch(data, 0) + (size + _fetch(data, size - 16)) * _K0
    b, c = _rotated(a + z, 52), _rotated(a, 37)
    a += _fetch(data, 8)
    c += _rotated(a, 7)
    a += _fetch(data, 16)
    vf, vs = a + z, b + _rotated(a, 31) + c
    a = _fetch(data, 16) + _fetch(data, size - 32)
    z = _fetch(data, size - 8)
    b, c = _rotated(a + z, 52), _rotated(a, 37)
    a += _fetch(data, size - 24)
    c += _rotated(a, 7)
    a += _fetch(data, size - 16)
    wf, ws = a + z, b + _rotated(a, 31) + c
    r = _mixed((vf + ws) * _K2 + (wf + vs) * _K0)
    return (_mixed(r * _K0 + vs) * _K2) & _MASK


def _weak(data: bytes, start: int, a: int, b: int) -> tuple[int, int]:
    w, x, y, z = (_fetch(data, start + 8 * i) for i in range(4))
    a += w
    b = _rotated(b + a + z, 21)
    c = a
    a += x + y
    b += _rotated(a, 44)
    return (a + z) & _MASK, (b + c) & _MASK


def city_hash(data: bytes) -> int:
    """Return the hash of bytes, an integer of 64 bits without a sign."""
    size = len(data)
    if size <= 16:
        return _short(data)
    if size <= 32:
        return _up_to_32(data)
    if size <= 64:
        return _up_to_64(data)
    x, y = _fetch(data, 0), _fetch(data, size - 16) ^ _K1
    z = _fetch(data, size - 56) ^ _K0
    v = _weak(data, size - 64, size, y)
    w = _weak(data, size - 32, size * _K1, _K0)
    z += _mixed(v[1]) * _K1
    x = _rotated(z + x, 39) * _K1
    y = _rotated(y, 33) * _K1
    for start in range(0, (size - 1) & ~63, 64):
        x = _rotated(x + y + v[0] + _fetch(data, start + 16), 37) * _K1
        y = _rotated(y + v[1] + _fetch(data, start + 48), 42) * _K1
        x ^= w[1]
        y ^= v[0]
        z = _rotated(z ^ w[0], 33)
        v = _weak(data, start, v[1] * _K1, x + w[0])
        w = _weak(data, start + 32, z + w[1], y)
        z, x = x & _MASK, z
    first = _pair(v[0], w[0]) + _mixed(y) * _K1 + z
    return _pair(first & _MASK, (_pair(v[1], w[1]) + x) & _MASK)
