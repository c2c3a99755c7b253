/*
 * py_merge.c -- merge_attention and its backward.
 */
#include "py_attnext.h"
#include "py_run.h"

#include <stddef.h>
#include <string.h>

/* outputs or lses: an array for each part, or one that stacks them along its first axis. */
typedef struct {
    PyArrayObject **arrays; /* owned, so many of them */
    Py_ssize_t held;
    const float **data; /* where each part lies */
} merge_parts;

/* A call of either function. All arrays are owned. */
typedef struct {
    merge_parts outputs, lses;
    PyArrayObject *output, *lse;       /* of the result; or what flows into it, */
    PyArrayObject *d_outputs, *d_lses; /* and then these are the result */
    Py_ssize_t count;                  /* of parts */
    npy_intp rows, Dv;
    int ndim; /* of a part's output, (..., M, Dv); lse has no Dv */
    npy_intp dims[PY_MAX_AXES + 1]; /* (count, ..., M, Dv); not set to zero first */
} merge_call;

/* ---- the arguments --------------------------------------------------------------- */

/* Takes the first array of outputs for the shape of all. */
static int
note_shape(merge_call *m, PyArrayObject *a, const char *name, bool stacked)
{
    m->ndim = PyArray_NDIM(a) - stacked;
    if (m->ndim < 2) {
        return py_shape_error(a, name,
                              stacked ? "three axes or more: (parts, ..., M, Dv)"
                                      : "two axes or more: (..., M, Dv)");
    }
    py_note_shape(a, m->dims + !stacked);
    m->count = stacked ? m->dims[0] : m->count;
    m->dims[0] = m->count;
    m->rows = PyArray_MultiplyList(m->dims + 1, m->ndim - 1);
    m->Dv = m->dims[m->ndim];
    return 0;
}

/* Without rows nothing is done, however many parts there are. */
static int
point_to(const merge_call *m, merge_parts *parts, bool stacked)
{
    const npy_intp size = parts == &m->lses ? m->rows : m->rows * m->Dv;
    if (m->rows == 0) {
        return 0;
    }
    parts->data = PyMem_Calloc((size_t)m->count, sizeof *parts->data);
    for (Py_ssize_t i = 0; parts->data != NULL && i < m->count; i++) {
        parts->data[i] = stacked ? py_data(parts->arrays[0]) + i * size
                                 : py_data(parts->arrays[i]);
    }
    return parts->data == NULL ? py_refuse(0, "the parts") : 0;
}

/* first: their shape is the first to be known. */
static int
read_parts(merge_call *m, merge_parts *parts, PyObject *object, const char *name,
           bool first)
{
    const bool stacked = !PyList_Check(object) && !PyTuple_Check(object);
    const Py_ssize_t arrays = stacked ? 1 : PySequence_Fast_GET_SIZE(object);
    if (!first && !stacked && arrays != m->count) {
        return py_wrong("count_of_parts", "(snn)", name, arrays, m->count);
    }
    if ((parts->arrays = PyMem_Calloc((size_t)arrays, sizeof *parts->arrays)) == NULL) {
        return py_refuse(0, "the parts");
    }
    parts->held = arrays;
    m->count = first ? arrays : m->count;
    for (Py_ssize_t i = 0; i < arrays; i++) {
        char of_list[40];
        const char *part = stacked ? name : of_list;
        if (!stacked) {
            PyOS_snprintf(of_list, sizeof of_list, "%s[%zd]", name, i);
        }
        PyArrayObject *a = py_float32(
            stacked ? object : PySequence_Fast_GET_ITEM(object, i), part);
        parts->arrays[i] = a;
        if (a == NULL || (first && i == 0 && note_shape(m, a, part, stacked) < 0) ||
            py_check_shape(a, part, m->ndim - (parts == &m->lses) + stacked,
                           m->dims + !stacked) < 0) {
            return -1;
        }
    }
    return m->count > 0 ? point_to(m, parts, stacked)
                        : py_wrong("sentence", "(s)", "no_parts");
}

/* What flows in: one array of the shape of a part. */
static int
read_flow(PyArrayObject **flow, PyObject *object, const char *name, int ndim,
          const merge_call *m)
{
    *flow = py_float32_shaped(object, name, ndim, m->dims + 1);
    return *flow == NULL ? -1 : 0;
}

static int
read_call(merge_call *m, PyObject *const *given)
{
    memset(m, 0, offsetof(merge_call, dims));
    if (read_parts(m, &m->outputs, given[ARG_OUTPUTS], "outputs", true) < 0 ||
        read_parts(m, &m->lses, given[ARG_LSES], "lses", false) < 0 ||
        (given[ARG_GRAD_OUTPUT] != NULL && read_flow(&m->output, given[ARG_GRAD_OUTPUT],
                                                     "grad_output", m->ndim, m) < 0)) {
        return -1;
    }
    PyObject *grad_lse = given[ARG_GRAD_LSE];
    return py_is_given(grad_lse)
               ? read_flow(&m->lse, grad_lse, "grad_lse", m->ndim - 1, m)
               : 0;
}

static void
clear_parts(merge_parts *parts)
{
    for (Py_ssize_t i = 0; i < parts->held; i++) {
        Py_XDECREF(parts->arrays[i]);
    }
    PyMem_Free(parts->arrays);
    PyMem_Free(parts->data);
}

static void
clear_call(merge_call *m)
{
    clear_parts(&m->outputs);
    clear_parts(&m->lses);
    Py_XDECREF(m->output);
    Py_XDECREF(m->lse);
    Py_XDECREF(m->d_outputs);
    Py_XDECREF(m->d_lses);
}

/* ---- the core -------------------------------------------------------------------- */

static int
call_core(const void *context, void *scratch, attn_run *run)
{
    const merge_call *m = context;
    const float *const *outputs = m->outputs.data, *const *lses = m->lses.data;
    return m->d_outputs == NULL
               ? attn_merge(py_data(m->output), py_data(m->lse), outputs, lses,
                            m->count, m->rows, m->Dv, scratch, run)
               : attn_merge_backward(py_data(m->d_outputs), py_data(m->d_lses),
                                     py_data(m->output), py_data(m->lse), outputs, lses,
                                     m->count, m->rows, m->Dv, scratch, run);
}

/* Fills the arrays of the result. */
static int
run_merge(const attnext_state *state, const merge_call *m)
{
    /* multiply-adds: an exp for each row, and what becomes of each number */
    const double work = (double)m->count * (double)m->rows * (8.0 + (double)m->Dv);
    return m->rows == 0 ? 0
                        : py_run(state, m->d_outputs == NULL ? work : 2.0 * work, true,
                                 call_core, m);
}

/* ---- the functions --------------------------------------------------------------- */

/* Either function; the backward has a grad_output. */
static PyObject *
merge(attnext_state *state, PyObject *const *given)
{
    const bool backward = given[ARG_GRAD_OUTPUT] != NULL;
    PyArrayObject **first, **second;
    PyObject *result = NULL;
    merge_call m;

    if (read_call(&m, given) == 0) {
        first = backward ? &m.d_outputs : &m.output;
        second = backward ? &m.d_lses : &m.lse;
        *first = py_new_float32(m.ndim + backward, m.dims + !backward);
        if (*first != NULL) {
            *second = py_new_float32(m.ndim - 1 + backward, m.dims + !backward);
        }
        if (*second != NULL && run_merge(state, &m) == 0) {
            result = PyTuple_Pack(2, *first, *second);
        }
    }
    clear_call(&m);
    return result;
}

PY_EXPOSED(merge_attention, merge, 2, 2, ARG_OUTPUTS, ARG_LSES)

PY_EXPOSED(merge_attention_backward, merge, 3, 3, ARG_GRAD_OUTPUT, ARG_OUTPUTS,
           ARG_LSES, ARG_GRAD_LSE)
