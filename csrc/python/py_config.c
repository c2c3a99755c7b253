/*
 * py_config.c -- the number of threads, the memory that is kept, and what is in use:
 * set_num_threads, get_num_threads, empty_cache, show_config.
 */
#include "py_attnext.h"

#include <limits.h>

#include "../os/cpu_count.h"
#include "../os/memory.h"
#include "../simd/dispatch.h"

/* ---- threads --------------------------------------------------------------------- */

static const py_signature set_num_threads_signature = {
    .function = "set_num_threads",
    .required = 1,
    .positional = 1,
    .args = {ARG_N},
};

static PyObject *
set_num_threads(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                PyObject *kwnames)
{
    attnext_state *state = py_state_of_module(module);
    PyObject *given[ARG_COUNT];

    if (py_parse(state, &set_num_threads_signature, args, nargs, kwnames, given) < 0) {
        return NULL;
    }
    PyObject *n = given[ARG_N];
    Py_ssize_t threads;
    if (py_size(n, "n", &threads) < 0) {
        return NULL;
    }
    if (threads < 1 || threads > INT_MAX) {
        char expected[40];
        PyOS_snprintf(expected, sizeof expected, "1 <= n <= %d", INT_MAX);
        py_value_error(n, "n", expected);
        return NULL;
    }
    state->threads = (int)threads;
    Py_RETURN_NONE;
}

static const py_signature get_num_threads_signature = {
    .function = "get_num_threads",
    .required = 0,
    .positional = 0,
    .args = {ARG_END},
};

static PyObject *
get_num_threads(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                PyObject *kwnames)
{
    attnext_state *state = py_state_of_module(module);
    PyObject *given[ARG_COUNT];

    if (py_parse(state, &get_num_threads_signature, args, nargs, kwnames, given) < 0) {
        return NULL;
    }
    return PyLong_FromLong(state->threads);
}

/* ---- memory ---------------------------------------------------------------------- */

static const py_signature empty_cache_signature = {
    .function = "empty_cache",
    .required = 0,
    .positional = 0,
    .args = {ARG_END},
};

static PyObject *
empty_cache(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
            PyObject *kwnames)
{
    PyObject *given[ARG_COUNT];

    if (py_parse(py_state_of_module(module), &empty_cache_signature, args, nargs,
                 kwnames, given) < 0) {
        return NULL;
    }
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

/* The version of the package around this module. */
static PyObject *
package_version(void)
{
    PyObject *package = PyImport_ImportModule("attnext");
    if (package == NULL) {
        return NULL;
    }
    PyObject *version = PyObject_GetAttrString(package, "__version__");
    Py_DECREF(package);
    return version;
}

static const py_signature show_config_signature = {
    .function = "show_config",
    .required = 0,
    .positional = 1,
    .args = {ARG_MODE},
};

static PyObject *
show_config(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
            PyObject *kwnames)
{
    attnext_state *state = py_state_of_module(module);
    PyObject *given[ARG_COUNT], *version = NULL, *sets = NULL, *result = NULL;

    if (py_parse(state, &show_config_signature, args, nargs, kwnames, given) < 0) {
        goto done;
    }
    PyObject *mode = given[ARG_MODE];
    if (mode != NULL && !PyUnicode_Check(mode)) {
        py_kind_error(mode, "mode", "a str");
        goto done;
    }
    bool dicts = mode != NULL && PyUnicode_CompareWithASCIIString(mode, "dicts") == 0;
    if (mode != NULL && !dicts &&
        PyUnicode_CompareWithASCIIString(mode, "stdout") != 0) {
        py_value_error(mode, "mode", "'stdout' or 'dicts'");
        goto done;
    }
    version = package_version();
    sets = available_sets();
    if (version == NULL || sets == NULL) {
        goto done;
    }
    if (dicts) {
        result = Py_BuildValue(
            "{s:O, s:{s:s, s:O}, s:{s:i, s:i}, s:{s:n, s:n}, s:{s:s, s:s}}", "version",
            version, "instruction_set", "chosen", attn_cpu_name(), "available", sets,
            "threads", "chosen", state->threads, "cpus", attn_cpu_count(), "memory",
            "kept", (Py_ssize_t)attn_memory_kept(), "limit",
            (Py_ssize_t)attn_memory_limit(), "build", "compiler", COMPILER, "python",
            PY_VERSION);
    } else {
        PySys_FormatStdout("attnext %S\n"
                           "instruction set: %s, chosen from %S\n"
                           "threads: %d (CPUs at hand: %d)\n"
                           "memory kept for large results: %zd MiB (at most %zd)\n"
                           "built by %s for Python %s\n",
                           version, attn_cpu_name(), sets, state->threads,
                           attn_cpu_count(), (Py_ssize_t)(attn_memory_kept() >> 20),
                           (Py_ssize_t)(attn_memory_limit() >> 20), COMPILER,
                           PY_VERSION);
        result = Py_NewRef(Py_None);
    }
done:
    Py_XDECREF(sets);
    Py_XDECREF(version);
    return result;
}

const py_function py_config_functions[] = {
    {&set_num_threads_signature, PY_FASTCALL(set_num_threads)},
    {&get_num_threads_signature, PY_FASTCALL(get_num_threads)},
    {&empty_cache_signature, PY_FASTCALL(empty_cache)},
    {&show_config_signature, PY_FASTCALL(show_config)},
    {0},
};
