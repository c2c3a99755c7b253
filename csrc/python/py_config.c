/*
 * py_config.c -- the number of threads, the memory that is kept, and what is in use:
 * set_num_threads, get_num_threads, empty_cache, show_config.
 */
#include "py_attnext.h"

#include "../os/cpu_count.h"
#include "../os/memory.h"
#include "../simd/dispatch.h"

static PyObject *
set_threads(attnext_state *state, PyObject *const *given)
{
    state->threads = (int)py_clip_int(given[ARG_N], 1, INT32_MAX);
    Py_RETURN_NONE;
}

static PyObject *
get_threads(attnext_state *state, PyObject *const *Py_UNUSED(given))
{
    return PyLong_FromLong(state->threads);
}

static PyObject *
release_memory(attnext_state *Py_UNUSED(state), PyObject *const *Py_UNUSED(given))
{
    attn_memory_release();
    Py_RETURN_NONE;
}

/* ---- configuration --------------------------------------------------------------- */

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown"
#endif

/* What there is to say, attnext/_config.py shows. */
static PyObject *
show(attnext_state *state, PyObject *const *given)
{
    PyObject *mode = given[ARG_MODE] == NULL ? PyUnicode_FromString("stdout")
                                             : Py_NewRef(given[ARG_MODE]);
    const char *sets[8] = {NULL}; /* that run here: None behind them */
    attn_cpu_available(sets, 8);
    return py_ask(
        "attnext._config", "show",
        "(N{s:{s:s, s:[ssssssss]}, s:{s:i, s:i}, s:{s:n, s:n}, s:{s:s, s:s}})", mode,
        "instruction_set", "chosen", attn_cpu_name(), "available", sets[0], sets[1],
        sets[2], sets[3], sets[4], sets[5], sets[6], sets[7], "threads", "chosen",
        state->threads, "cpus", attn_cpu_count(), "memory", "kept",
        (Py_ssize_t)attn_memory_kept(), "limit", (Py_ssize_t)attn_memory_limit(),
        "build", "compiler", COMPILER, "python", PY_VERSION);
}

/* ---- the functions --------------------------------------------------------------- */

PY_EXPOSED(set_num_threads, set_threads, 1, 1, ARG_N)

PY_EXPOSED(get_num_threads, get_threads, 0, 0, ARG_END)

PY_EXPOSED(empty_cache, release_memory, 0, 0, ARG_END)

PY_EXPOSED(show_config, show, 0, 1, ARG_MODE)
