/*
 * py_module.c -- the module attnext._core, as if it were Python:
 *
 *     masked_softmax, masked_softmax_backward, sequence_mask         # py_softmax.c
 *     for score in attn.h:                                           # py_functions.c
 *         <score>_attention, <score>_attention_backward, <score>_scores
 *         <Score>Gradients = collections.namedtuple(...)     # if it has parameters
 *     multi_head_attention, ..., MultiHeadGradients
 *     OPTIONS, SCORES, ATTENTIONS: the tables, as dicts              # py_tables.c
 *     merge_attention, merge_attention_backward                      # py_merge.c
 *     class AdditiveAttention, DotProductAttention, MultiHeadAttention   # py_layer.c
 *     select_instruction_set(os.environ.get("ATTNEXT_CPU"))          # or ImportError
 *     threads, kept, defers = attnext._config.settings(...)          # or ImportError
 *     attnext._layers.fill(...)                          # cold methods of the classes
 *     attnext._docs.join(...)                            # docstrings: py_tables.c
 */
#define ATTNEXT_IMPORTS_NUMPY
#include "py_run.h"

#include <stdlib.h>

#include "../os/cpu_count.h"
#include "../os/memory.h"
#include "../simd/dispatch.h"
#include "../tensors/tensors.h"

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

/* What the environment asks for: attnext/_config.py reads the numbers in it, and puts its
 * functions into the module. */
static int
read_settings(PyObject *module, attnext_state *state)
{
    static bool
        selected; /* once a process: memories and contexts that an earlier import
                           * of the module made are laid out for the kernels of then */
    const char *refused = selected ? NULL : attn_cpu_select(getenv("ATTNEXT_CPU"));
    unsigned long long mib;
    int threads, defers;
    PyObject *found = py_ask("attnext._config", "settings", "(isO)", attn_cpu_count(),
                             refused, module);
    const bool read = found != NULL &&
                      PyArg_ParseTuple(found, "iKp", &threads, &mib, &defers);
    selected = selected || refused == NULL;
    if (read) {
        state->threads = threads;
        py_defers = defers;
        attn_memory_set_limit((size_t)mib << 20);
    }
    Py_XDECREF(found);
    return read ? 0 : -1;
}

static int
add_functions(PyObject *module, const attnext_state *state)
{
#define ADDRESS(NAME) &py_##NAME,
    static const py_function *const functions[] = {PY_FUNCTIONS(ADDRESS)};
    static PyMethodDef methods[Py_ARRAY_LENGTH(functions) + 1];
    int result = 0;
    for (size_t i = 0; result == 0 && i < Py_ARRAY_LENGTH(functions); i++) {
        result = py_fill_method(state, functions[i], 0, &methods[i]);
    }
    return result < 0 || PyModule_AddFunctions(module, py_config_methods) < 0
               ? -1
               : PyModule_AddFunctions(module, methods);
}

static int
module_exec(PyObject *module)
{
    attnext_state *state = py_state_of_module(module);

    import_array1(-1);
    if (py_quiet_exec() < 0 || read_settings(module, state) < 0 ||
        py_intern_names(state) < 0 || add_functions(module, state) < 0 ||
        py_scores_exec(module, state) < 0 || py_tensors_exec(module) < 0 ||
        py_layers_exec(module, state) < 0 ||
        py_told(py_ask("attnext._layers", "fill", "(O)", module)) < 0 ||
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
    for (int i = 0; i < STATE_OBJECTS; i++) {
        Py_VISIT(state->objects[i]);
    }
    return 0;
}

static int
module_clear(PyObject *module)
{
    attnext_state *state = py_state_of_module(module);
    for (int i = 0; i < STATE_OBJECTS; i++) {
        Py_CLEAR(state->objects[i]);
    }
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
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
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
