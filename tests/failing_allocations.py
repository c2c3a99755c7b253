"""Memory that cannot be had: every allocation of every public function and method fails once.

Each time there is a MemoryError or, where the call can do without, the right result; nothing is
lost; and afterwards the call gives what it gave before. That a failure leaves gradients and
memories as they were is held in test_modules_life.py and test_modules_memory.py.
"""

from __future__ import annotations

import gc
import platform
import re
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any

import compiling
import numpy as np
import pytest
from helpers import SCORES, SCORES_FUNCTION, make_problem, run_python
from multi_headed import make_heads

import attnext
from attnext import AdditiveAttention, DotProductAttention, MultiHeadAttention, _core, _layers

fail = pytest.importorskip("_testcapi")  # CPython's own tool for it

Layer = AdditiveAttention | DotProductAttention | MultiHeadAttention
Call = partial[Any]
Cases = Iterator[tuple[str, Call]]

X = np.random.default_rng(0).standard_normal((2, 3, 4), dtype=np.float32)
LISTS, LSE = X.tolist(), X[:, :, 0].tolist()
WEIGHTS = X[:, :, :3].tolist()
MASK = np.ones((2, 1, 3), dtype=bool)
LARGE = np.ones((300, 64), dtype=np.float32)
FAR = 2**62  # what only Python's ints can be added to

# ---- the calls: arguments have to be converted ---------------------------------------------------


def functions() -> Cases:
    """What is no attention, and attentions of another kind than those below."""
    parts, lses = [LISTS, X], [LSE, X[:, :, 1]]
    yield (
        "masked_softmax",
        partial(attnext.masked_softmax, LISTS, [[1, 2, 3], [0, 1, 2]], mask=[[[True] * 4]]),
    )
    yield "masked_softmax_backward", partial(attnext.masked_softmax_backward, LISTS, LISTS, [1, 2])
    yield "sequence_mask", partial(attnext.sequence_mask, LISTS, [1, 2], value=-1)
    yield "merge_attention", partial(attnext.merge_attention, parts, lses)
    yield "merge_attention stacked", partial(attnext.merge_attention, [LISTS] * 2, [LSE] * 2)
    yield (
        "merge_attention_backward",
        partial(attnext.merge_attention_backward, LISTS, parts, lses, grad_lse=LSE),
    )
    yield "show_config", partial(attnext.show_config, "dicts")
    yield "empty_cache", partial(attnext.empty_cache)
    yield "positional_encoding", partial(attnext.positional_encoding, 3, 4)
    yield "get_num_threads", partial(attnext.get_num_threads)
    yield "set_num_threads", partial(attnext.set_num_threads, attnext.get_num_threads())
    yield (
        "dot_product_attention large",
        partial(attnext.dot_product_attention, LARGE, LARGE, LARGE, return_weights=True),
    )
    yield (
        "dot_product_attention far",
        partial(attnext.dot_product_attention, X, X, X, window=(FAR, 1), causal_offset=[FAR, 1]),
    )


def scores() -> Cases:
    """Every score, forward and backward, with every option that is an array."""
    masks: dict[str, Any] = {"valid_lens": [[1, 2, 3], [0, 1, 2]], "mask": MASK, "bias": WEIGHTS}
    masks |= {"causal_offset": [1, 2], "sink": [0, 1, 2], "dropout_mask": MASK}
    options = {**masks, "causal": True, "softcap": 3, "dropout_p": 0.5}
    grads = {"grad_weights": WEIGHTS, "grad_lse": LSE, "return_grad_bias": True}
    for score in SCORES:
        problem = make_problem(score, np.random.default_rng(0), lead=(2,), M=3, N=3, D=4, Dv=4)
        inputs = {name: x.tolist() for name, x in problem.inputs.items()}
        scored = {name: x for name, x in inputs.items() if name != "values"}
        scaled = {"scale": [1, 2]} if score in ("dot", "cosine") else {}
        asked = {"return_grad_scale": True} if scaled else {}
        names = SCORES_FUNCTION[score], SCORES_FUNCTION[score].replace("scores", "attention")
        of_scores, attention = (getattr(attnext, name) for name in names)
        of_scores_backward, attention_backward = (
            getattr(attnext, f"{name}_backward") for name in names
        )
        inputs |= scaled | options
        scored |= scaled
        yield names[0], partial(of_scores, **scored)
        yield f"{names[0]}_backward", partial(of_scores_backward, WEIGHTS, **scored, **asked)
        yield names[1], partial(attention, **inputs, return_weights=True, return_lse=True)
        yield (
            f"{names[1]}_backward",
            partial(attention_backward, LISTS, **inputs, **grads, **asked, return_grad_sink=True),
        )


def before_kept(**arguments: Any) -> list[Any]:
    """The results before what is kept, whose gaps nobody writes."""
    *results, _kept = _core._multi_head_attention(**arguments, return_lse=True, return_kept=True)
    return results


def beside() -> Cases:
    """Heads that lie inside rows."""
    x = np.copy(np.stack([X, X]).swapaxes(1, 2), order="K")
    yield "_dot_product_attention", partial(_core._dot_product_attention, x, x, x)
    backward = partial(_core._dot_product_attention_backward, x.copy(), x, x, x)
    yield "_dot_product_attention_backward", backward


def heads() -> Cases:
    """Multi-head attention, likewise; of the options those that belong to heads."""
    options: dict[str, Any] = {"valid_lens": [[1, 2, 3], [0, 1, 2]], "causal_offset": [1, 2]}
    options |= {"mask": MASK[:, None], "sink": [0, 1, 2], "scale": [1, 2, 3], "causal": True}
    problem = make_heads(np.random.default_rng(0), N=3, kv_heads=1, bias_terms=True, **options)
    arguments = {name: x.tolist() for name, x in problem.inputs.items()} | problem.options
    grads = {name: x.tolist() for name, x in problem.grads.items()}
    yield "multi_head_attention", partial(attnext.multi_head_attention, **arguments)
    yield (
        "multi_head_attention_backward",
        partial(attnext.multi_head_attention_backward, **grads, **arguments, return_grad_sink=True),
    )
    yield from beside()
    yield "_multi_head_attention", partial(before_kept, **arguments)
    *_, kept = _core._multi_head_attention(**arguments, return_kept=True)
    arguments |= {**grads, "kept": kept.tolist()}
    yield (
        "_multi_head_attention_backward",
        partial(_core._multi_head_attention_backward, **arguments),
    )


MAKERS: list[Callable[[], Layer]] = [
    partial(AdditiveAttention, 4, 4, 5, bias=True, rng=[1]),
    partial(DotProductAttention, 0.5, scale=2.0, rng=[1]),
    partial(MultiHeadAttention, 4, 4, 4, 4, 1, bias=True, rng=[1]),
]


def made_anew(make: Callable[..., Layer], rng: np.random.Generator) -> dict[str, Any]:
    """Drawn from a generator that is there: where NumPy cannot make one, it loses 152 bytes."""
    rng.bit_generator.state = START
    return make(rng=rng).state_dict()


START = np.random.default_rng(3).bit_generator.state


def layers() -> Cases:
    """Every method and attribute of the layers, of a context and of a memory."""
    for make in MAKERS:
        layer = make()
        name = type(layer).__name__
        lead = (2, 1) if isinstance(layer, MultiHeadAttention) else (2,)
        mask, weights = MASK.reshape(*lead, 1, 3), np.reshape(WEIGHTS, (*lead, 3, 3)).tolist()
        layer(X, X, X, [1, 2], mask=mask, sink=np.reshape(LSE, (*lead, 3)))
        context, memory = layer.context, layer.memory(X, X, [1, 5], mask=MASK)
        layer.eval()  # or each call would draw another seed
        yield f"{name}.__init__", partial(made_anew, make, np.random.default_rng(3))
        attend = partial(layer, LISTS, X, X, [1, 2], mask=mask, softcap=2, sink=[1, 2, 3])
        yield f"{name}.__call__", attend
        backward = partial(layer.backward, LISTS, grad_weights=weights, context=context)
        yield f"{name}.backward", partial(backward, return_grad_sink=True)
        yield f"{name}.memory", partial(layer.memory, LISTS, LISTS, [1, 2], mask=MASK)
        yield f"{name}.train", partial(layer.train, mode=False)
        yield f"{name}.load_state_dict", partial(layer.load_state_dict, layer.state_dict())
        if isinstance(layer, MultiHeadAttention):
            state = layer.state_dict("torch")
            yield f"{name}.load_state_dict", partial(layer.load_state_dict, state)
            yield f"{name}.state_dict", partial(layer.state_dict, "torch")
        yield f"{name}._write", partial(layer._write, layer._live.copy())
        yield f"{name}.parameters", partial(_layers._checked, layer)
        yield f"{name}._read", partial(layer._read, LISTS, "entry", (2, 3, 4))
        saved = layer.__reduce__()[1][0]
        sizes = [saved.get(size, 0) for size in SIZES]
        arrays = saved["rng"], saved["parameters"], saved["grads"]
        yield f"{name}._install", partial(make()._install, sizes, 0.5, None, True, *arrays)
        yield f"{name}._rebuild", partial(rebuilt, type(layer), saved)
        for parameter, x in layer.parameters().items():
            yield f"{name}.{parameter} =", partial(setattr, layer, parameter, x.tolist())
        yield "Memory.append", partial(life_of_a_memory, layer)
        yield "Memory._given_to", partial(memory._given_to, layer)
        yield "Memory._of", partial(life_of_data)
        for thing in (layer, context, memory):
            yield from attributes(thing)


SIZES = ("key_size", "query_size", "value_size", "num_hiddens", "num_heads", "num_kv_heads")


def rebuilt(kind: type[Layer], saved: dict[str, Any]) -> Any:
    """What pickle does; in itself it crashes without memory, in NumPy's dtype.__reduce__."""
    return kind._rebuild(saved).state_dict()


WEIGHTS_OF_DATA: dict[str, Any] = {"W_k": np.eye(5, 4, dtype=np.float32)}


def data() -> attnext.Memory:
    """A memory of no layer."""
    return attnext.Memory._of(
        "additive", (5, 4, 0, 0, 0), WEIGHTS_OF_DATA, LISTS, LISTS, [1, 5], MASK
    )


def life_of_data() -> Any:
    memory = data()
    memory.append(LISTS, LISTS, MASK)
    given: Any = (X, memory._now(), None, np.eye(5, 4), WEIGHTS_OF_DATA["W_k"], np.ones(5))
    output = attnext.additive_attention(*given)
    return output, *attnext.additive_attention_backward(output, *given)[:3]


def life_of_a_memory(layer: Layer) -> Any:
    memory = layer.memory(X, X, [1, 5])
    memory.append(LISTS, LISTS, MASK)
    layer(LISTS, memory, mask=[True] * 6)
    layer.backward(LISTS)
    memory.append(X, X)
    layer(X, memory)
    layer.backward(X)
    return memory.backward()


ALONE = {"parameters", "zero_grad", "state_dict", "eval", "_now", "__repr__", "__len__"}
ALONE |= {f"{kind}Attention.__reduce__" for kind in ("Additive", "DotProduct", "MultiHead")}
ALONE.add("Memory.backward")


def attributes(thing: Any) -> Cases:
    """What needs no argument: methods, and attributes that are no methods."""
    kind = type(thing)
    for name in sorted(vars(kind).keys() - NOT_OURS):
        label = f"{kind.__name__}.{name}"
        if not callable(vars(kind)[name]):
            yield label, partial(getattr, thing, name)
        elif name == "_parts":
            yield label, partial(thing._parts, True)
        elif name in ALONE or label in ALONE:
            yield label, partial(getattr(thing, name))


NOT_OURS = {"__new__", "__doc__", "__module__", "__vectorcalloffset__", "__dir__", "forward"}
CASES: dict[str, Call] = {}
for case, call in (*functions(), *scores(), *heads(), *layers()):
    CASES[case + " again" * sum(known.split()[0] == case for known in CASES)] = call


def test_nothing_public_is_left_out() -> None:
    kinds = [AdditiveAttention, DotProductAttention, MultiHeadAttention]
    kinds += [attnext.Memory, attnext._core.Context]
    public = {name for name in attnext.__all__ if not isinstance(getattr(attnext, name), type)}
    for kind in kinds:
        public |= {f"{kind.__name__}.{name}" for name in vars(kind).keys() - NOT_OURS}
    public -= {"Memory.__reduce__", "Context.__reduce__"}  # refuse, whatever there is
    for attention in ("_multi_head", "_dot_product"):  # of attnext.torch
        public |= {f"{attention}_attention", f"{attention}_attention_backward"}
    assert {case.split()[0] for case in CASES} == public


# ---- the sweep -----------------------------------------------------------------------------------

# What CPython, asked for a generator's lock, and NumPy raise in the place of a MemoryError.
IN_PLACE = "can't allocate lock|<ufunc .*> returned NULL without setting an exception"


def set_nomemory(nth: int) -> None:
    fail.set_nomemory(nth, nth + 1)


def run(
    call: Call,
    nth: int,
    fail_at: Callable[[int], Any] = set_nomemory,
    stop: Callable[[], Any] = fail.remove_mem_hooks,
) -> Any:
    """The result of the call, whose nth allocation fails, or the exception."""
    fail_at(nth)
    try:
        return call()
    except (MemoryError, RuntimeError, SystemError) as error:
        stop()
        assert isinstance(error, MemoryError) or re.fullmatch(IN_PLACE, str(error)), error
        return error.with_traceback(None)
    finally:
        stop()


def held(call: Call) -> list[Any]:
    """What the call was given and works on, and what is in that, if there are references to it."""
    found: list[Any] = [*call.args, *call.keywords.values()]
    for x in (getattr(call.func, "__self__", call.func), *call.args):
        if isinstance(x, Layer):
            found += [type(x), x, x.context, x.grads, x.parameters()]
    for x in found:
        found += x if isinstance(x, list) else x.values() if isinstance(x, dict) else []
    return [x for x in found if not isinstance(x, (bool, int, float, NoneType))]


REPEATS = 10


def count(objects: list[Any]) -> tuple[int, int]:
    """The bytes that are allocated, and the references to these objects."""
    gc.collect()
    sys._clear_type_cache()  # has references to the names of attributes
    return tracemalloc.get_traced_memory()[0], sum(map(sys.getrefcount, objects))


def lost(call: Call, nths: range, repeats: int) -> tuple[int, int]:
    """(bytes, references) that so many more of the same failures leave behind; at best 0.

    The caches of Python and NumPy take some, and then no more.
    """
    objects = held(call)
    for _ in range(5):
        before = count(objects)
        for nth in nths:
            for _ in range(repeats):
                run(call, nth)
        after = count(objects)
        growth = after[0] - before[0], after[1] - before[1]
        if abs(growth[0]) < 16 * repeats and abs(growth[1]) < repeats:
            return 0, 0
    return growth


@pytest.fixture(scope="module")
def counted() -> Iterator[None]:
    """Every byte is, also those beside Python's objects; the collector is quick."""
    tracemalloc.start()
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    tracemalloc.stop()


NO_ALLOCATION = ("._write", "DotProductAttention.parameters")


@pytest.mark.parametrize("case", CASES)
def test_every_allocation_may_fail(case: str, counted: None) -> None:
    call = CASES[case]
    expected = repr(call())
    nth = failures = last = 0
    while nth < last + 10:
        result = run(call, nth)
        if isinstance(result, Exception):
            failures, last = failures + 1, nth
        else:
            assert repr(result) == expected, nth
        del result
        nth += 1
    if lost(call, range(nth), 2) != (0, 0):  # all of them at once, then which it is
        for one in range(nth):
            assert lost(call, range(one, one + 1), REPEATS) == (0, 0), one
    takes_arguments = call.func is not getattr and (call.args or call.keywords)
    takes_nothing_more = case == "set_num_threads" or case.endswith(NO_ALLOCATION)
    assert failures > 0 or not takes_arguments or takes_nothing_more
    assert repr(call()) == expected


# ---- what the system gives -----------------------------------------------------------------------

# Beside Python's objects: data of arrays, scratch, large blocks, parts of a list.
FAILING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void __libc_free(void *);

static atomic_long left = -1, failed, live;

/* The nth allocation from now on fails; -1: none. Returns how many have failed since. */
long fail_at(long nth) { atomic_store(&left, nth); return atomic_exchange(&failed, 0); }
long blocks(void) { return live; }

/* A thread's variables, when a library first asks for them: without, the loader gives up. */
static int is_loader(void *caller)
{
    Dl_info of;
    return dladdr(caller, &of) && of.dli_fname != NULL && strstr(of.dli_fname, "/ld-") != NULL;
}

static int fails_for(void *caller)
{
    int now = atomic_load(&left) >= 0 && !is_loader(caller) && atomic_fetch_sub(&left, 1) == 0;
    failed += now;
    errno = now ? ENOMEM : errno;
    return now;
}

#define fails() fails_for(__builtin_return_address(0))

static void *count(void *block) { live += block != NULL; return block; }
void free(void *block) { live -= block != NULL; __libc_free(block); }
void *malloc(size_t n) { return fails() ? NULL : count(__libc_malloc(n)); }
void *calloc(size_t n, size_t size) { return fails() ? NULL : count(__libc_calloc(n, size)); }
void *realloc(void *block, size_t n)
{
    return fails() ? NULL : block == NULL ? malloc(n) : __libc_realloc(block, n);
}
void *mmap(void *at, size_t n, int protection, int flags, int file, off_t offset)
{
    void *(*map)(void *, size_t, int, int, int, off_t);
    *(void **)&map = dlsym(RTLD_NEXT, "mmap");
    return fails() ? MAP_FAILED : map(at, n, protection, flags, file, offset);
}
"""

SWEEP = """
import ctypes, sys
from failing_allocations import *

library = ctypes.PyDLL(sys.argv[1])
attnext.set_num_threads(1)  # another thread's first allocation would come in at any time
of_large = np.ones((2, 700, 700), np.float32)

def large_result():
    # a block of its own, and none is kept that could be taken
    attnext.empty_cache()
    return attnext.masked_softmax(of_large)

def result_of(call, nth):
    return run(call, nth, library.fail_at, lambda: library.fail_at(-1))

def lost(call, nths, repeats):
    # whether so many more of the same failures leave blocks behind; caches take some
    for _ in range(3):
        before = library.blocks()
        for nth in nths:
            for _ in range(repeats):
                result_of(call, nth)
        if abs(library.blocks() - before) < repeats:
            return False
    return True

failures = 0
for call in [large_result, *(call for call in CASES.values() if call.func is not getattr)]:
    nth, last, expected = 0, 0, repr(call())
    while nth < last + 5:
        result = result_of(call, nth)
        if isinstance(result, Exception):
            failures, last = failures + 1, nth
        else:
            assert repr(result) == expected, (call, nth)
        nth += 1
    if lost(call, range(nth), 2):  # all of them at once, then which it is
        for one in range(nth):
            assert not lost(call, [one], REPEATS), (call, one)
    assert failures > 0  # the block is one
print(failures)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="its malloc has a second name")
def test_every_allocation_of_the_system_may_fail(tmp_path: Path) -> None:
    source, library = tmp_path / "failing.c", tmp_path / "failing.so"
    source.write_text(FAILING)
    flags = ["-shared", "-fPIC", str(source), "-o", str(library), "-ldl"]
    compiling.run([*compiling.compiler(), *flags])
    preloaded = {"LD_PRELOAD": str(library), "OPENBLAS_NUM_THREADS": "1"}
    done = run_python("-c", SWEEP, str(library), check=False, **preloaded)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50
