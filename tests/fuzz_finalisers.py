"""Finalisers at random allocations of random calls: python tests/fuzz_finalisers.py SECONDS [SEED]

What test_attacks_finalisers.py does in order is mixed here: several deeds in one call, arguments
that have to be converted, any allocation. A round is what its seed makes of it, and the seed of one
that fails is printed. Made for AddressSanitizer, which ends what reads or writes beside an array.
"""

from __future__ import annotations

import random
import sys
from functools import partial

import fuzz_rounds
import numpy as np
from hostile import FUNCTIONS, MAKERS, check_well, deeds, freed, make, methods, same
from test_attacks_finalisers import CONVERTED, collected_during


def free_arguments(r: random.Random) -> None:
    """The results are right, or one of the arguments that went is named."""
    function, given = FUNCTIONS[r.choice(list(FUNCTIONS))]
    arguments = {
        name: CONVERTED[r.choice(list(CONVERTED))](x)
        if isinstance(x, np.ndarray) and r.random() < 0.3
        else x
        for name, x in given.items()
    }
    expected = function(**arguments)
    arrays = [name for name, x in arguments.items() if isinstance(x, np.ndarray)]
    victims = r.sample(arrays, r.randint(1, min(3, len(arrays))))
    arguments |= {name: arguments[name].copy(order="K") for name in victims}
    how = r.choice(["moved", "resized"])

    def free() -> None:
        for name in victims:
            freed(arguments[name], how)

    try:
        found = collected_during(partial(function, **arguments), free, r.randint(1, 60))
    except ValueError as error:
        assert any(name in str(error) for name in (*victims, " shape")), error
    else:
        same(found, expected)


def use_the_object(r: random.Random) -> None:
    """Whatever comes of the call, the layer is good for another one."""
    layer, memory = make(r.choice(list(MAKERS)))
    known = deeds(layer, memory)
    chosen = [known[r.choice(list(known))] for _ in range(r.randint(1, 3))]
    call, given = methods(layer, memory)[r.choice(list(methods(layer, memory)))]

    def act() -> None:
        for deed in chosen:
            deed()

    try:
        collected_during(partial(call, **given), act, r.randint(1, 60))
    except (ValueError, RuntimeError, TypeError, KeyError):
        pass
    check_well(layer)


def one_round(number: int) -> None:
    r = random.Random(number)
    r.choice([free_arguments, use_the_object])(r)


if __name__ == "__main__":
    fuzz_rounds.run(one_round, float(sys.argv[1]), *map(int, sys.argv[2:]))
