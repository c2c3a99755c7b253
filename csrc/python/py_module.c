/*
 * py_module.c -- the module attnext._core, as if it were Python:
 *
 *     masked_softmax, masked_softmax_backward, sequence_mask               # py_softmax.c
 *     dot_product_attention, ..._backward, dot_product_scores              # py_dot.c
 *     additive_attention, ..._backward, additive_scores                    # py_additive.c
 *     gaussian_attention, ..._backward, gaussian_scores                    # py_gaussian.c
 *     class AdditiveAttention: ...                                         # py_modules.c
 *     class DotProductAttention: ...
 *
 *     AdditiveGradients = collections.namedtuple(
 *         "AdditiveGradients", "queries keys values W_q W_k w_v b_h", module="attnext")
 *
 *     select_instruction_set(os.environ.get("ATTNEXT_CPU"))                # or ImportError
 *     _threads = int(os.environ.get("ATTNEXT_NUM_THREADS", cpu_count()))   # or ImportError
 *     def set_num_threads(n): ...
 *     def get_num_threads(): ...
 *     def show_config(mode="stdout"): ...
 */
#define ATTNEXT_IMPORTS_NUMPY
#include "py_attnext.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "../simd/dispatch.h"

static PyModuleDef attnext_module;

attnext_state *
py_state_of_module(PyObject *module)
{
    return PyModule_GetState(module);
}

attnext_state *
py_state_of_type(PyTypeObject *type)
{
    return PyModule_GetState(PyType_GetModuleByDef(type, &attnext_module));
}

/* ---- threads -------------------------------------------------------------------------------- */

static const py_signature set_num_threads_signature = {"set_num_threads", 1, 1, {ARG_N}};

PyDoc_STRVAR(set_num_threads_doc,
"set_num_threads(n)\n"
"--\n\n"
"Set how many threads a call may use.\n"
"\n"
"Parameters\n"
"----------\n"
"n : int\n"
"    At least 1; more than there are CPUs is allowed. Results do not depend on it, and\n"
"    calls too small to gain from threads use one.\n"
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
set_num_threads(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    attnext_state *state = py_state_of_module(module);
    PyObject *given[ARG_COUNT];

    if (py_parse(state, &set_num_threads_signature, args, nargs, kwnames, given) < 0) {
        return NULL;
    }
    PyObject *n = given[ARG_N];
    if (PyBool_Check(n) || !PyIndex_Check(n)) {
        PyErr_Format(PyExc_TypeError, "n must be an int, got %.200s", Py_TYPE(n)->tp_name);
        return NULL;
    }
    Py_ssize_t threads = PyNumber_AsSsize_t(n, NULL); /* NULL: clipped if too large */
    if (threads == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (threads < 1 || threads > INT_MAX) {
        PyErr_Format(PyExc_ValueError, "n is %R, expected 1 <= n <= %d", n, INT_MAX);
        return NULL;
    }
    state->threads = (int)threads;
    Py_RETURN_NONE;
}

static const py_signature get_num_threads_signature = {"get_num_threads", 0, 0, {ARG_END}};

PyDoc_STRVAR(get_num_threads_doc,
"get_num_threads()\n"
"--\n\n"
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
get_num_threads(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    attnext_state *state = py_state_of_module(module);
    PyObject *given[ARG_COUNT];

    if (py_parse(state, &get_num_threads_signature, args, nargs, kwnames, given) < 0) {
        return NULL;
    }
    return PyLong_FromLong(state->threads);
}

/* ---- configuration -------------------------------------------------------------------------- */

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

static const py_signature show_config_signature = {"show_config", 0, 1, {ARG_MODE}};

PyDoc_STRVAR(show_config_doc,
"show_config(mode='stdout')\n"
"--\n\n"
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
"    (``chosen``) and of the ``cpus`` at hand; ``build``, a dict of the ``compiler`` and\n"
"    the version of ``python`` it was built for.\n"
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
"\n"
"Notes\n"
"-----\n"
"The environment variable ``ATTNEXT_CPU``, read at import, chooses an instruction set:\n"
"scalar, generic, avx2 or avx512.\n"
"\n"
"Examples\n"
"--------\n"
">>> from attnext import show_config\n"
">>> config = show_config(mode='dicts')\n"
">>> config['instruction_set']['chosen'] in config['instruction_set']['available']\n"
"True\n");

static PyObject *
show_config(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    attnext_state *state = py_state_of_module(module);
    PyObject *given[ARG_COUNT], *version = NULL, *sets = NULL, *result = NULL;

    if (py_parse(state, &show_config_signature, args, nargs, kwnames, given) < 0) {
        goto done;
    }
    PyObject *mode = given[ARG_MODE];
    if (mode != NULL && !PyUnicode_Check(mode)) {
        PyErr_Format(PyExc_TypeError, "mode must be a str, got %.200s", Py_TYPE(mode)->tp_name);
        goto done;
    }
    bool dicts = mode != NULL && PyUnicode_CompareWithASCIIString(mode, "dicts") == 0;
    if (mode != NULL && !dicts && PyUnicode_CompareWithASCIIString(mode, "stdout") != 0) {
        PyErr_Format(PyExc_ValueError, "mode is %R, expected 'stdout' or 'dicts'", mode);
        goto done;
    }
    version = package_version();
    sets = available_sets();
    if (version == NULL || sets == NULL) {
        goto done;
    }
    if (dicts) {
        result = Py_BuildValue("{s:O, s:{s:s, s:O}, s:{s:i, s:i}, s:{s:s, s:s}}",
                               "version", version,
                               "instruction_set", "chosen", attn_cpu_name(), "available", sets,
                               "threads", "chosen", state->threads, "cpus", attn_cpu_count(),
                               "build", "compiler", COMPILER, "python", PY_VERSION);
    } else {
        PySys_FormatStdout("attnext %S\n"
                           "instruction set: %s, chosen from %S\n"
                           "threads: %d (CPUs at hand: %d)\n"
                           "built by %s for Python %s\n",
                           version, attn_cpu_name(), sets, state->threads, attn_cpu_count(),
                           COMPILER, PY_VERSION);
        result = Py_NewRef(Py_None);
    }
done:
    Py_XDECREF(sets);
    Py_XDECREF(version);
    return result;
}

static PyMethodDef module_functions[] = {
    PY_FUNCTION(set_num_threads),
    PY_FUNCTION(get_num_threads),
    PY_FUNCTION(show_config),
    {0},
};

/* ---- start-up ------------------------------------------------------------------------------- */

static int
intern_names(attnext_state *state)
{
    static const char *const names[ARG_COUNT] = {
        [ARG_X] = "X",
        [ARG_QUERIES] = "queries",
        [ARG_KEYS] = "keys",
        [ARG_VALUES] = "values",
        [ARG_VALID_LENS] = "valid_lens",
        [ARG_VALID_LEN] = "valid_len",
        [ARG_VALUE] = "value",
        [ARG_W_Q] = "W_q",
        [ARG_W_K] = "W_k",
        [ARG_W_V] = "w_v",
        [ARG_B_H] = "b_h",
        [ARG_SCALE] = "scale",
        [ARG_W] = "w",
        [ARG_SIGMA] = "sigma",
        [ARG_EMPTY_ROWS] = "empty_rows",
        [ARG_DROPOUT_P] = "dropout_p",
        [ARG_SEED] = "seed",
        [ARG_RETURN_WEIGHTS] = "return_weights",
        [ARG_RETURN_LSE] = "return_lse",
        [ARG_OUT] = "out",
        [ARG_GRAD_OUTPUT] = "grad_output",
        [ARG_GRAD_WEIGHTS] = "grad_weights",
        [ARG_GRAD_LSE] = "grad_lse",
        [ARG_WEIGHTS] = "weights",
        [ARG_OUTPUT] = "output",
        [ARG_LSE] = "lse",
        [ARG_N] = "n",
        [ARG_MODE] = "mode",
        [ARG_NEED_WEIGHTS] = "need_weights",
        [ARG_CONTEXT] = "context",
    };
    for (int i = ARG_END + 1; i < ARG_COUNT; i++) {
        state->names[i] = PyUnicode_InternFromString(names[i]);
        if (state->names[i] == NULL) {
            return -1;
        }
    }
    return 0;
}

static int
select_instruction_set(void)
{
    const char *wanted = getenv("ATTNEXT_CPU");
    const char *message = attn_cpu_select(wanted);
    if (message == NULL) {
        return 0;
    }
    PyObject *text = PyUnicode_DecodeFSDefault(wanted);
    if (text != NULL) {
        PyErr_Format(PyExc_ImportError, "ATTNEXT_CPU=%R: %s", text, message);
        Py_DECREF(text);
    }
    return -1;
}

static int
read_num_threads(attnext_state *state)
{
    const char *wanted = getenv("ATTNEXT_NUM_THREADS");
    if (wanted == NULL || *wanted == '\0') {
        state->threads = attn_cpu_count();
        return 0;
    }
    char *end;
    errno = 0;
    long threads = strtol(wanted, &end, 10);
    if (errno == 0 && *end == '\0' && threads >= 1 && threads <= INT_MAX) {
        state->threads = (int)threads;
        return 0;
    }
    PyObject *text = PyUnicode_DecodeFSDefault(wanted);
    if (text != NULL) {
        PyErr_Format(PyExc_ImportError, "ATTNEXT_NUM_THREADS=%R: expected a whole number >= 1",
                     text);
        Py_DECREF(text);
    }
    return -1;
}

/* collections.namedtuple, so that it has _fields, _asdict and pickles. */
static int
make_additive_gradients(PyObject *module, attnext_state *state)
{
    int result = -1;
    PyObject *collections = NULL, *namedtuple = NULL, *args = NULL, *kwargs = NULL, *doc = NULL;

    collections = PyImport_ImportModule("collections");
    if (collections == NULL) {
        goto done;
    }
    namedtuple = PyObject_GetAttrString(collections, "namedtuple");
    args = Py_BuildValue("(ss)", "AdditiveGradients", "queries keys values W_q W_k w_v b_h");
    kwargs = Py_BuildValue("{s:s}", "module", "attnext");
    doc = PyUnicode_FromString("Gradients of additive_attention, each in the shape of what it "
                               "belongs to; b_h is None without a bias.");
    if (namedtuple == NULL || args == NULL || kwargs == NULL || doc == NULL) {
        goto done;
    }
    state->AdditiveGradients = PyObject_Call(namedtuple, args, kwargs);
    if (state->AdditiveGradients == NULL ||
        PyObject_SetAttrString(state->AdditiveGradients, "__doc__", doc) < 0) {
        goto done;
    }
    result = PyModule_AddObjectRef(module, "AdditiveGradients", state->AdditiveGradients);
done:
    Py_XDECREF(doc);
    Py_XDECREF(kwargs);
    Py_XDECREF(args);
    Py_XDECREF(namedtuple);
    Py_XDECREF(collections);
    return result;
}

static int
module_exec(PyObject *module)
{
    attnext_state *state = py_state_of_module(module);

    import_array1(-1);
    if (select_instruction_set() < 0 || read_num_threads(state) < 0 || intern_names(state) < 0 ||
        make_additive_gradients(module, state) < 0 ||
        PyModule_AddFunctions(module, py_softmax_functions) < 0 ||
        PyModule_AddFunctions(module, py_dot_functions) < 0 ||
        PyModule_AddFunctions(module, py_additive_functions) < 0 ||
        PyModule_AddFunctions(module, py_gaussian_functions) < 0) {
        return -1;
    }
    return py_modules_exec(module, state);
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    attnext_state *state = py_state_of_module(module);
    Py_VISIT(state->AdditiveGradients);
    Py_VISIT(state->AdditiveAttention);
    Py_VISIT(state->DotProductAttention);
    Py_VISIT(state->Context);
    return 0;
}

static int
module_clear(PyObject *module)
{
    attnext_state *state = py_state_of_module(module);
    for (int i = 0; i < ARG_COUNT; i++) {
        Py_CLEAR(state->names[i]);
    }
    Py_CLEAR(state->AdditiveGradients);
    Py_CLEAR(state->AdditiveAttention);
    Py_CLEAR(state->DotProductAttention);
    Py_CLEAR(state->Context);
    return 0;
}

static void
module_free(void *module)
{
    module_clear(module);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030C0000 /* as NumPy: one interpreter per process */
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0},
};

PyDoc_STRVAR(module_doc, "The compiled part of attnext; import attnext instead.");

static PyModuleDef attnext_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "attnext._core",
    .m_doc = module_doc,
    .m_size = sizeof(attnext_state),
    .m_methods = module_functions,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModuleDef_Init(&attnext_module);
}
