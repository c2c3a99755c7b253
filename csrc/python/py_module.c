/*
 * py_module.c -- the module attnext._core, as if it were Python:
 *
 *     masked_softmax, masked_softmax_backward, sequence_mask         # py_softmax.c
 *     dot_product_attention, ..._backward, dot_product_scores        # py_dot.c
 *     cosine_attention, ..._backward, cosine_scores                  # py_cosine.c
 *     additive_attention, ..._backward, additive_scores              # py_additive.c
 *     gaussian_attention, ..._backward, gaussian_scores              # py_gaussian.c
 *     merge_attention, merge_attention_backward                      # py_merge.c
 *     class AdditiveAttention: ...                                   # py_modules.c
 *     class DotProductAttention: ...
 *
 *     AdditiveGradients = collections.namedtuple(
 *         "AdditiveGradients", "queries keys values W_q W_k w_v b_h", module="attnext")
 *
 *     select_instruction_set(os.environ.get("ATTNEXT_CPU"))          # or ImportError
 *     threads = int(os.environ.get("ATTNEXT_NUM_THREADS", cpus))     # or ImportError
 *     set_num_threads, get_num_threads, show_config                  # py_config.c
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
        PyErr_Format(PyExc_ImportError,
                     "ATTNEXT_NUM_THREADS=%R: expected a whole number >= 1", text);
        Py_DECREF(text);
    }
    return -1;
}

PyDoc_STRVAR(additive_gradients_doc,
"Gradients of `additive_attention`, each in the shape of what it belongs to.\n"
"\n"
"Parameters\n"
"----------\n"
"queries : ndarray, float32, shape (..., M, Dq)\n"
"    Gradient with respect to the queries.\n"
"keys : ndarray, float32, shape (..., N, Dk)\n"
"    Gradient with respect to the keys.\n"
"values : ndarray, float32, shape (..., N, Dv)\n"
"    Gradient with respect to the values.\n"
"W_q : ndarray, float32, shape (H, Dq)\n"
"    Gradient with respect to the weights of the queries' projection.\n"
"W_k : ndarray, float32, shape (H, Dk)\n"
"    Gradient with respect to the weights of the keys' projection.\n"
"w_v : ndarray, float32, shape (H,) or (1, H)\n"
"    Gradient with respect to the weights of the hidden units.\n"
"b_h : ndarray, float32, shape (H,), or None\n"
"    Gradient with respect to the bias; None without one.\n");

/* collections.namedtuple, so that it has _fields, _asdict and pickles. */
static int
make_additive_gradients(PyObject *module, attnext_state *state)
{
    int result = -1;
    PyObject *collections = NULL, *namedtuple = NULL, *args = NULL, *kwargs = NULL,
             *doc = NULL;

    collections = PyImport_ImportModule("collections");
    if (collections == NULL) {
        goto done;
    }
    namedtuple = PyObject_GetAttrString(collections, "namedtuple");
    args = Py_BuildValue("(ss)", "AdditiveGradients",
                         "queries keys values W_q W_k w_v b_h");
    kwargs = Py_BuildValue("{s:s}", "module", "attnext");
    doc = PyUnicode_FromString(additive_gradients_doc);
    if (namedtuple == NULL || args == NULL || kwargs == NULL || doc == NULL) {
        goto done;
    }
    state->AdditiveGradients = PyObject_Call(namedtuple, args, kwargs);
    if (state->AdditiveGradients == NULL ||
        PyObject_SetAttrString(state->AdditiveGradients, "__doc__", doc) < 0) {
        goto done;
    }
    result = PyModule_AddObjectRef(module, "AdditiveGradients",
                                   state->AdditiveGradients);
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
    if (select_instruction_set() < 0 || read_num_threads(state) < 0 ||
        py_intern_names(state) < 0 || make_additive_gradients(module, state) < 0 ||
        PyModule_AddFunctions(module, py_config_functions) < 0 ||
        PyModule_AddFunctions(module, py_softmax_functions) < 0 ||
        PyModule_AddFunctions(module, py_dot_functions) < 0 ||
        PyModule_AddFunctions(module, py_cosine_functions) < 0 ||
        PyModule_AddFunctions(module, py_additive_functions) < 0 ||
        PyModule_AddFunctions(module, py_gaussian_functions) < 0 ||
        PyModule_AddFunctions(module, py_merge_functions) < 0) {
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
