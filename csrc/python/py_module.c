/*
 * py_module.c -- the module attnext._core, as if it were Python:
 *
 *     masked_softmax, masked_softmax_backward, sequence_mask         # py_softmax.c
 *     for score in attn.h:                                           # py_functions.c
 *         <score>_attention, <score>_attention_backward, <score>_scores
 *         <Score>Gradients = collections.namedtuple(...)     # if it has parameters
 *     multi_head_attention, ..., MultiHeadGradients
 *     OPTIONS, SCORES, ATTENTIONS: the tables, as dicts              # py_tables.c
 *     FOREIGN: what other libraries call an argument                 # py_hints.c
 *     merge_attention, merge_attention_backward                      # py_merge.c
 *     class AdditiveAttention: ...                                   # py_layer.c
 *     class DotProductAttention: ...
 *     class MultiHeadAttention: ...
 *
 *     select_instruction_set(os.environ.get("ATTNEXT_CPU"))          # or ImportError
 *     threads = int(os.environ.get("ATTNEXT_NUM_THREADS", cpus))     # or ImportError
 *     keep_at_most(os.environ.get("ATTNEXT_CACHE_MIB", 256))         # or ImportError
 *     attnext._layers.fill(...)                          # cold methods of the classes
 *     attnext._docs.join(...)                            # docstrings: py_docs.c
 *
 *     set_num_threads, get_num_threads, empty_cache, show_config     # py_config.c
 */
#define ATTNEXT_IMPORTS_NUMPY
#include "py_attnext.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "../os/cpu_count.h"
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

/* ---- start-up -------------------------------------------------------------------- */

/* Once a process: memories and contexts that an earlier import of the module made are
 * laid out for the kernels of then. */
static int
select_instruction_set(void)
{
    static bool selected;
    if (selected) {
        return 0;
    }
    const char *wanted = getenv("ATTNEXT_CPU");
    const char *message = attn_cpu_select(wanted);
    selected = message == NULL;
    if (selected) {
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
        PyErr_Format(PyExc_ImportError,
                     "ATTNEXT_NUM_THREADS=%R: expected a whole number >= 1", text);
        Py_DECREF(text);
    }
    return -1;
}

static int
add_functions(PyObject *module, const attnext_state *state)
{
    static const py_function *const tables[] = {
        py_config_functions, py_softmax_functions, py_merge_functions};
    static PyMethodDef methods[3][8];
    for (int i = 0; i < 3; i++) {
        if (py_fill_methods(state, tables[i], 0, methods[i]) < 0 ||
            PyModule_AddFunctions(module, methods[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Puts the methods that are in Python into the types. */
static int
fill_layers(PyObject *module)
{
    PyObject *layers = PyImport_ImportModule("attnext._layers");
    PyObject *done = layers == NULL ? NULL
                                    : PyObject_CallMethod(layers, "fill", "O", module);
    Py_XDECREF(done);
    Py_XDECREF(layers);
    return done == NULL ? -1 : 0;
}

static int
module_exec(PyObject *module)
{
    attnext_state *state = py_state_of_module(module);

    import_array1(-1);
    py_read_setting();
    if (select_instruction_set() < 0 || read_num_threads(state) < 0 ||
        py_read_memory_limit() < 0 || py_intern_names(state) < 0 ||
        add_functions(module, state) < 0 || py_scores_exec(module, state) < 0) {
        return -1;
    }
    if (py_layers_exec(module, state) < 0 || fill_layers(module) < 0 ||
        py_join_docs(module) < 0) {
        return -1;
    }
    py_layers_seal(state);
    return 0;
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    attnext_state *state = py_state_of_module(module);
    for (int i = 0; i < SCORE_COUNT; i++) {
        Py_VISIT(state->scores[i].Gradients);
        Py_VISIT(state->layers[i]);
    }
    Py_VISIT(state->Context);
    Py_VISIT(state->Memory);
    return 0;
}

static int
module_clear(PyObject *module)
{
    attnext_state *state = py_state_of_module(module);
    for (int i = 0; i < ARG_COUNT; i++) {
        Py_CLEAR(state->names[i]);
    }
    for (int i = 0; i < SCORE_COUNT; i++) {
        Py_CLEAR(state->scores[i].Gradients);
        Py_CLEAR(state->layers[i]);
        for (int j = 0; j < ATTN_PARAMETERS; j++) {
            Py_CLEAR(state->parameter_names[i][j]);
        }
    }
    Py_CLEAR(state->Context);
    Py_CLEAR(state->Memory);
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

/* clang-format off */
static PyModuleDef attnext_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "attnext._core",
    .m_doc = module_doc,
    .m_size = sizeof(attnext_state),
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};
/* clang-format on */

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModuleDef_Init(&attnext_module);
}
