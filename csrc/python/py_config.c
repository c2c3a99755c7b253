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

PyDoc_STRVAR(set_num_threads_doc,
"Set how many threads a call may use.\n"
"\n"
"Parameters\n"
"----------\n"
"n : int\n"
"    At least 1; more than there are CPUs is allowed. Results do not depend on it,\n"
"    and calls too small to gain from threads use one.\n"
"\n"
"Raises\n"
"------\n"
"TypeError\n"
"    `n` is not an int.\n"
"ValueError\n"
"    `n` is less than 1.\n"
"\n"
"See Also\n"
"--------\n"
"get_num_threads : The number set.\n"
"\n"
"Notes\n"
"-----\n"
"The setting is one for the whole process. It starts as the environment variable\n"
"``ATTNEXT_NUM_THREADS``, or else as the number of CPUs the process may use.\n"
"\n"
"Examples\n"
"--------\n"
">>> from attnext import get_num_threads, set_num_threads\n"
">>> before = get_num_threads()\n"
">>> set_num_threads(1)\n"
">>> get_num_threads()\n"
"1\n"
">>> set_num_threads(before)\n");

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

PyDoc_STRVAR(get_num_threads_doc,
"Return how many threads a call may use.\n"
"\n"
"Returns\n"
"-------\n"
"n : int\n"
"    The number set by `set_num_threads`, or at import.\n"
"\n"
"See Also\n"
"--------\n"
"set_num_threads : Change it.\n"
"\n"
"Examples\n"
"--------\n"
">>> from attnext import get_num_threads\n"
">>> get_num_threads() >= 1\n"
"True\n");

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

PyDoc_STRVAR(empty_cache_doc,
"Give the memory that is kept for the next call back to the system.\n"
"\n"
"See Also\n"
"--------\n"
"show_config : How much is kept, and how much may be.\n"
"\n"
"Notes\n"
"-----\n"
"When an array of 8 MiB or more that a call returned is gone, its memory is kept, and\n"
"a later call of that size need not wait until the system has cleared new pages: a\n"
"masked softmax takes a third less time. At most 256 MiB are kept, or as many as the\n"
"environment variable ``ATTNEXT_CACHE_MIB`` said at import; 0 keeps nothing. When\n"
"memory is short, the system takes it by itself (Linux, macOS).\n"
"\n"
"The name is that of ``torch.cuda.empty_cache``.\n"
"\n"
"Examples\n"
"--------\n"
">>> import numpy as np\n"
">>> import attnext\n"
">>> weights = attnext.masked_softmax(np.zeros((8, 1024, 1024)))\n"
">>> del weights\n"
">>> attnext.empty_cache()\n"
">>> attnext.show_config('dicts')['memory']['kept']\n"
"0\n");

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

PyDoc_STRVAR(show_config_doc,
"Show which instruction set and how many threads are in use, and how this was built.\n"
"\n"
"Parameters\n"
"----------\n"
"mode : {'stdout', 'dicts'}, optional\n"
"    Print it, or return it.\n"
"\n"
"Returns\n"
"-------\n"
"config : dict or None\n"
"    With 'dicts': ``version``; ``instruction_set``, a dict of the one ``chosen`` and\n"
"    those ``available`` here; ``threads``, a dict of the number a call may use\n"
"    (``chosen``) and of the ``cpus`` at hand; ``memory``, a dict of how many bytes\n"
"    are ``kept`` for the next call and of the ``limit``; ``build``, a dict of the\n"
"    ``compiler`` and the version of ``python`` it was built for.\n"
"\n"
"Raises\n"
"------\n"
"TypeError\n"
"    `mode` is not a str.\n"
"ValueError\n"
"    `mode` is neither 'stdout' nor 'dicts'.\n"
"\n"
"See Also\n"
"--------\n"
"set_num_threads : Change the number of threads.\n"
"empty_cache : Give back the memory that is kept.\n"
"\n"
"Notes\n"
"-----\n"
"The environment variable ``ATTNEXT_CPU``, read at the first import of a process,\n"
"chooses an instruction set: scalar, generic, avx2 or avx512.\n"
"\n"
"Examples\n"
"--------\n"
">>> from attnext import show_config\n"
">>> config = show_config(mode='dicts')\n"
">>> config['instruction_set']['chosen'] in config['instruction_set']['available']\n"
"True\n");

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
    {&set_num_threads_signature, PY_FASTCALL(set_num_threads), set_num_threads_doc,
     NULL},
    {&get_num_threads_signature, PY_FASTCALL(get_num_threads), get_num_threads_doc,
     NULL},
    {&empty_cache_signature, PY_FASTCALL(empty_cache), empty_cache_doc, NULL},
    {&show_config_signature, PY_FASTCALL(show_config), show_config_doc, NULL},
    {0},
};
