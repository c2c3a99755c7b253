/*
 * py_config.c -- threads, kept memory and what is in use, for attnext/_config.py.
 */
#include "py_attnext.h"

#include "../os/cpu_count.h"
#include "../os/memory.h"
#include "../simd/dispatch.h"

/* The number of threads, which becomes n unless that is 0. */
static PyObject *
threads(PyObject *module, PyObject *n)
{
    attnext_state *state = py_state_of_module(module);
    if (!PyLong_Check(n)) {
        py_wrong("kind", "(sOs)", "n", n, "an int");
        return NULL;
    }
    const int given = (int)py_clip_int(n, 0, INT32_MAX);
    state->threads = given > 0 ? given : state->threads;
    return PyLong_FromLong(state->threads);
}

static PyObject *
release_memory(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    attn_memory_release();
    Py_RETURN_NONE;
}

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown"
#endif

static PyObject *
facts(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    const attnext_state *state = py_state_of_module(module);
    const char *sets[8] = {NULL}; /* that run here: None behind them */
    attn_cpu_available(sets, 8);
    return Py_BuildValue(
        "{s:{s:s, s:[ssssssss]}, s:{s:i, s:i}, s:{s:n, s:n}, s:{s:s, s:s}}",
        "instruction_set", "chosen", attn_cpu_name(), "available", sets[0], sets[1],
        sets[2], sets[3], sets[4], sets[5], sets[6], sets[7], "threads", "chosen",
        state->threads, "cpus", attn_cpu_count(), "memory", "kept",
        (Py_ssize_t)attn_memory_kept(), "limit", (Py_ssize_t)attn_memory_limit(),
        "build", "compiler", COMPILER, "python", PY_VERSION);
}

PyMethodDef py_config_methods[] = {
    {"_threads", threads, METH_O, "_threads($module, n, /)\n--\n\n"},
    {"_release", release_memory, METH_NOARGS, "_release($module)\n--\n\n"},
    {"_facts", facts, METH_NOARGS, "_facts($module)\n--\n\n"},
    {0},
};
