"""The checksum CRC-32C (Castagnoli's polynomial, RFC 3720 appendix B.4) in NumPy."""

from functools import cache

import numpy as np

_POLYNOMIAL = 0x82F63B78  # The leading bit is the lowest power.
# An array is processed in this many parts at a time: enough for NumPy's loops, few enough for the cache.
_LANES = 4096


def crc32c(data: np.ndarray) -> int:
    """Return the checksum of a contiguous array's bytes."""
    content = np.frombuffer(data, "u1")
    words = content[: content.size // 4 * 4].view("<u4")
    register, length = 0xFFFFFFFF, words.size // _LANES
    if length:
        register, words = _lanes(words[: _LANES * length].reshape(_LANES, length), register), words[_LANES * length :]
    low, high = _lists()
    for word in words.tolist():
        register ^= word
        register = low[register & 0xFFFF] ^ high[register >> 16]
    for byte in content[content.size // 4 * 4 :].tolist():
        register ^= byte
        register = high[(register & 0xFF) << 8] ^ (register >> 8)
    return register ^ 0xFFFFFFFF


def masked_crc32c(data: np.ndarray) -> int:
    """Return the checksum as TensorFlow and LevelDB store it (leveldb/util/crc32c.h)."""
    value = crc32c(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _lanes(lanes: np.ndarray, register: int) -> int:
    """Return the register after all lanes.

    Each lane has its own register. To join two lanes, a matrix advances the first one's register as zeros would.
    """
    low, high = _tables()
    registers = np.zeros(len(lanes), "u4")
    registers[0] = register
    for column in lanes.T:
        registers ^= column
        registers = low[registers & 0xFFFF] ^ high[registers >> 16]
    bits = np.left_shift(np.uint32(1), np.arange(32, dtype="u4"))
    power, past = low[bits & 0xFFFF] ^ high[bits >> 16], bits  # They advance a register by one word, and by none.
    length = lanes.shape[1]
    while length:
        past = _apply(power, past) if length & 1 else past
        power, length = _apply(power, power), length >> 1
    while registers.size > 1:
        registers = _apply(past, registers[::2]) ^ registers[1::2]
        past = _apply(past, past)
    return int(registers[0])


def _apply(matrix: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Multiply a matrix of bits, given by its columns, by vectors of bits."""
    product = np.zeros_like(vectors)
    for i, column in enumerate(matrix):
        product ^= (vectors >> np.uint32(i) & np.uint32(1)) * column
    return product


@cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Return lookup tables for a word's lower and upper half."""
    high = np.arange(2**16, dtype="u4")
    for _ in range(16):
        high = high >> 1 ^ (high & 1) * np.uint32(_POLYNOMIAL)
    return high[high & 0xFFFF] ^ high >> 16, high


@cache
def _lists() -> tuple[list[int], list[int]]:
    low, high = _tables()
    return low.tolist(), high.tolist()
