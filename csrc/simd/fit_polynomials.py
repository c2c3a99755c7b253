"""Fit the polynomials of kernels_math.h: ``python fit_polynomials.py`` (needs mpmath).

Remez exchange in 40 digits; prints each coefficient as a float32 hex literal, lowest degree
first, and the largest relative error before the coefficients are rounded.
"""

import struct
from collections.abc import Callable

import mpmath as mp

mp.mp.dps = 40
Function = Callable[[mp.mpf], mp.mpf]


def remez(f: Function, weight: Function, terms: int, a: float, b: float) -> tuple[list, mp.mpf]:
    """Coefficients c minimising max |weight(x) (sum_j c_j x^j - f(x))| over [a, b]."""
    a, b, points, steps = mp.mpf(a), mp.mpf(b), terms + 1, 2000
    grid = [a + (b - a) * i / steps for i in range(steps + 1)]
    nodes = [(a + b) / 2 - (b - a) / 2 * mp.cos(mp.pi * i / terms) for i in range(points)]
    for _ in range(12):
        rows = [[x**j for j in range(terms)] + [(-1) ** i / weight(x)] for i, x in enumerate(nodes)]
        solution = mp.lu_solve(mp.matrix(rows), mp.matrix([f(x) for x in nodes]))
        c = [solution[j] for j in range(terms)]
        error = [weight(x) * (mp.polyval(c[::-1], x) - f(x)) for x in grid]
        nodes, best = [], 0
        for i in range(1, steps + 1):
            if mp.sign(error[i]) != mp.sign(error[best]):
                nodes.append(grid[best])
                best = i
            elif abs(error[i]) > abs(error[best]):
                best = i
        nodes.append(grid[best])
        if len(nodes) != points:
            raise RuntimeError(f"{len(nodes)} extrema found, {points} expected")
    return c, max(abs(e) for e in error)


def show(name: str, fit: tuple[list, mp.mpf]) -> None:
    """Print one polynomial."""
    coefficients, error = fit
    floats = [struct.unpack("f", struct.pack("f", float(c)))[0] for c in coefficients]
    print(name, "relative error", mp.nstr(error, 3))
    for value in floats:
        print("   ", value.hex())


def expm1_over_x(x: mp.mpf) -> mp.mpf:
    """(2^x - 1) / x: what the terms after the constant 1 approximate."""
    return (mp.mpf(2) ** x - 1) / x if x else mp.log(2)


def tanh_tail(z: mp.mpf) -> mp.mpf:
    """(tanh(x)/x - 1) / x^2 at z = x^2."""
    x = mp.sqrt(z)
    return (mp.tanh(x) / x - 1) / z if z > 1e-12 else mp.mpf(-1) / 3


if __name__ == "__main__":
    tiny = mp.mpf("1e-9")
    show("2^f = 1 + f P(f)", remez(expm1_over_x, lambda x: max(abs(x), tiny) / 2**x, 6, -0.5, 0.5))
    show("tanh x = x + x^3 Q(x^2)", remez(tanh_tail, lambda z: z + 1e-6, 5, 0, 0.625**2))
