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
    const int64_t threads = py_clip_int(given[ARG_N], 0, INT64_MAX);
    if (threads < 1 || threads > INT32_MAX) {
        py_value_error(given[ARG_N], "n", "1 <= n <= 2147483647");
        return NULL;
    }
    state->threads = (int)threads;
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

/* The names of the instruction sets that run on this machine. */
static PyObject *
available_sets(void)
{
    const char *names[8];
    int count = attn_cpu_available(names, 8);
    PyObject *list = PyList_New(count);
    for (int i = 0; list != NULL && i < count; i++) {
        PyObject *name = PyUnicode_FromString(names[i]);
        if (name == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, name);
        }
    }
    return list;
}

/* What there is to say, attnext/_config.py shows. */
static PyObject *
show(attnext_state *state, PyObject *const *given)
{
    PyObject *mode = given[ARG_MODE] == NULL ? PyUnicode_FromString("stdout")
                                             : Py_NewRef(given[ARG_MODE]);
    return py_ask("attnext._config", "show",
                  "(N{s:{s:s, s:N}, s:{s:i, s:i}, s:{s:n, s:n}, s:{s:s, s:s}})", mode,
                  "instruction_set", "chosen", attn_cpu_name(), "available",
                  available_sets(), "threads", "chosen", state->threads, "cpus",
                  attn_cpu_count(), "memory", "kept", (Py_ssize_t)attn_memory_kept(),
                  "limit", (Py_ssize_t)attn_memory_limit(), "build", "compiler",
                  COMPILER, "python", PY_VERSION);
}

/* ---- the functions --------------------------------------------------------------- */

static const py_signature set_num_threads_signature = {
    .function = "set_num_threads", .required = 1, .positional = 1, .args = {ARG_N}};
PY_EXPOSED(set_num_threads, set_threads)

static const py_signature get_num_threads_signature = {.function = "get_num_threads"};
PY_EXPOSED(get_num_threads, get_threads)

static const py_signature empty_cache_signature = {.function = "empty_cache"};
PY_EXPOSED(empty_cache, release_memory)

static const py_signature show_config_signature = {
    .function = "show_config", .positional = 1, .args = {ARG_MODE}};
PY_EXPOSED(show_config, show)

const py_function py_config_functions[] = {
    {&set_num_threads_signature, PY_FASTCALL(set_num_threads)},
    {&get_num_threads_signature, PY_FASTCALL(get_num_threads)},
    {&empty_cache_signature, PY_FASTCALL(empty_cache)},
    {&show_config_signature, PY_FASTCALL(show_config)},
    {0},
};
