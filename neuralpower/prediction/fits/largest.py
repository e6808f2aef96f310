"""The largest size whose bytes fit, from as few sizes as possible.

Memory grows nearly in line with the batch and no faster than squarely with the length: two sizes give a
guess, each further one narrows the bracket.
"""

from __future__ import annotations

from collections.abc import Callable

MOST = 2**24  # of a batch or a length: beyond, nobody asks
CLOSE = 0.01  # of the answer: how far the bracket is closed for sizes above a hundred


def largest(
    bytes_at: Callable[[int], float], room_bytes: float, start: int = 1, close: float = CLOSE, power: int = 1
) -> int:
    """The largest size whose bytes, which grow with it, are at most `room_bytes`; 0 where even 1 takes more.

    Exact up to a hundred and where sizes end (their bytes are infinite); beyond, within the share `close` and
    on the safe side. Every answer has been looked at. That the next is too large may follow from three
    sizes on one line. `power`: bytes are about linear in that power of the size, such as 2 of a side.
    """
    known: dict[int, float] = {}
    low, high, guess = 0, MOST, max(start, 1)
    while high - low > (max(1, int(close * low)) if low > 100 and known.get(high) != float("inf") else 1):
        if guess not in known:
            known[guess] = bytes_at(guess)
        if known[guess] <= room_bytes:
            low = max(low, guess)
            if _on_line(known, low, power) and _line(known, low, low + 1, power) > room_bytes:
                high = min(high, low + 1)
        else:
            high = min(high, guess)
        if low >= MOST:
            break
        guess = _next(known, low, high, room_bytes, power)
    return low


def _on_line(known: dict[int, float], size: int, power: int) -> bool:
    """Whether the bytes of a size lie on the line through the two sizes below it."""
    below = sorted(one for one in known if one < size)[-2:]
    return len(below) == 2 and abs(_line(known, below[1], size, power) - known[size]) < 1


def _line(known: dict[int, float], size: int, at: int, power: int) -> float:
    """Bytes at another size, by the line through a size and the one below it."""
    before = max(one for one in known if one < size)
    slope = (known[size] - known[before]) / float(size**power - before**power)
    return known[size] + float(at**power - size**power) * slope


def _next(known: dict[int, float], low: int, high: int, room_bytes: float, power: int) -> int:
    """Where the line through the two nearest sizes meets the available memory, else the bracket's middle."""
    if low == 0 and 1 not in known:
        return 1  # where even one does not fit, nothing is left to be sought
    below = sorted(size for size in known if size <= low)
    above = [size for size in known if size >= high and known[size] < float("inf")]
    points = below[-2:] if not above else [*below[-1:], min(above)]
    if len(points) == 2 and known[points[1]] > known[points[0]]:
        slope = (known[points[1]] - known[points[0]]) / (points[1] ** power - points[0] ** power)
        end = points[1] ** power + (room_bytes - known[points[1]]) / slope
        guess = int(max(end, 0.0) ** (1 / power)) if power > 1 else int(end)
        if not above:
            guess = min(guess, 16 * max(low, 1))
        elif guess in known:
            guess = guess + 1 if guess <= low else guess - 1
        if low < guess < high:
            return guess
        if guess <= low and low + 1 < high:
            return low + 1 if (low + 1) not in known else (low + high) // 2
    if high >= MOST and not above:
        return min(max(2 * low, 1), MOST)
    return (low + high) // 2
