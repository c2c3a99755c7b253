/*
 * py_merge.c -- merge_attention and its backward.
 */
#include "py_merge.h"
#include "py_run.h"

#include <string.h>

/* Multiply-adds: an exp for each row, and what becomes of each number. */
static double
merge_work(const merge_inputs *in)
{
    return (double)in->outputs.count * (double)in->rows * (8.0 + (double)in->Dv);
}

/* ---- forward --------------------------------------------------------------------- */

static const py_signature merge_signature = {
    .function = "merge_attention",
    .required = 2,
    .positional = 2,
    .args = {ARG_OUTPUTS, ARG_LSES},
};

typedef struct {
    const merge_inputs *in;
    float **outputs, **lses;     /* [parts] each: of the inputs ... */
    float **d_outputs, **d_lses; /* ... and, backward, of their gradients */
    PyArrayObject *output, *lse; /* of the result, or of what flows into it */
} merge_context;

static size_t
merge_workspace(const void *context, int threads)
{
    const merge_context *m = context;
    return attn_merge_workspace(m->in->outputs.count, threads);
}

static int
call_merge(const void *context, void *scratch, attn_run *run)
{
    const merge_context *m = context;
    return attn_merge(py_data(m->output), py_data(m->lse),
                      (const float *const *)m->outputs, (const float *const *)m->lses,
                      m->in->outputs.count, m->in->rows, m->in->Dv, scratch, run);
}

/* Fills in the addresses of the parts, and calls the core: `arrays` of them, two, or
 * four with those of the gradients, d_outputs and d_lses, that are not NULL then. */
static int
run_merge(const attnext_state *state, merge_context *m, PyArrayObject *d_outputs,
          PyArrayObject *d_lses, py_core_call *call)
{
    const merge_inputs *in = m->in;
    const Py_ssize_t parts = in->outputs.count;
    bool backward = d_outputs != NULL;
    if (in->rows == 0) {
        return 0; /* however many parts there are */
    }
    float **pointers = PyMem_Calloc((size_t)parts, 4 * sizeof *pointers);
    if (pointers == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    m->outputs = pointers;
    m->lses = m->outputs + parts;
    m->d_outputs = m->lses + parts;
    m->d_lses = m->d_outputs + parts;
    merge_point_to_parts(m->outputs, &in->outputs, in->rows * in->Dv);
    merge_point_to_parts(m->lses, &in->lses, in->rows);
    if (backward) {
        merge_point_into(m->d_outputs, d_outputs, parts, in->rows * in->Dv);
        merge_point_into(m->d_lses, d_lses, parts, in->rows);
    }
    int result = py_run(state, (backward ? 2.0 : 1.0) * merge_work(in), merge_workspace,
                        call, m);
    PyMem_Free(pointers);
    return result;
}

static PyObject *
merge_attention(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                PyObject *kwnames)
{
    const attnext_state *state = py_state_of_module(module);
    PyObject *given[ARG_COUNT], *owned = NULL, *result = NULL;
    PyArrayObject *output = NULL, *lse = NULL;
    merge_inputs in;

    merge_inputs_init(&in);
    if (py_parse_plain(state, &merge_signature, args, nargs, kwnames, given, &owned) <
            0 ||
        merge_inputs_read(&in, given[ARG_OUTPUTS], given[ARG_LSES]) < 0) {
        goto done;
    }
    output = py_new_float32(in.outputs.ndim, in.outputs.dims);
    lse = py_new_float32(in.lses.ndim, in.lses.dims);
    merge_context context = {.in = &in, .output = output, .lse = lse};
    if (output != NULL && lse != NULL &&
        run_merge(state, &context, NULL, NULL, call_merge) == 0) {
        result = PyTuple_Pack(2, output, lse);
    }
done:
    Py_XDECREF(lse);
    Py_XDECREF(output);
    merge_inputs_clear(&in);
    Py_XDECREF(owned);
    return result;
}

/* ---- backward -------------------------------------------------------------------- */

static const py_signature merge_backward_signature = {
    .function = "merge_attention_backward",
    .required = 3,
    .positional = 3,
    .args = {ARG_GRAD_OUTPUT, ARG_OUTPUTS, ARG_LSES, ARG_GRAD_LSE},
};

/* A new array of shape (parts, ...) for the gradients of the parts. */
static PyArrayObject *
new_stacked(const merge_parts *parts)
{
    npy_intp dims[PY_MAX_AXES + 1];
    dims[0] = parts->count;
    memcpy(dims + 1, parts->dims, (size_t)parts->ndim * sizeof *dims);
    return py_new_float32(parts->ndim + 1, dims);
}

static int
call_merge_backward(const void *context, void *scratch, attn_run *run)
{
    const merge_context *m = context;
    return attn_merge_backward(m->d_outputs, m->d_lses, py_data(m->output),
                               py_data(m->lse), (const float *const *)m->outputs,
                               (const float *const *)m->lses, m->in->outputs.count,
                               m->in->rows, m->in->Dv, scratch, run);
}

static PyObject *
merge_attention_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                         PyObject *kwnames)
{
    const attnext_state *state = py_state_of_module(module);
    PyObject *given[ARG_COUNT], *owned = NULL, *result = NULL;
    PyArrayObject *grad = NULL, *grad_lse = NULL, *d_outputs = NULL, *d_lses = NULL;
    merge_inputs in;

    merge_inputs_init(&in);
    if (py_parse_plain(state, &merge_backward_signature, args, nargs, kwnames, given,
                       &owned) < 0 ||
        merge_inputs_read(&in, given[ARG_OUTPUTS], given[ARG_LSES]) < 0) {
        goto done;
    }
    grad = py_float32_shaped(given[ARG_GRAD_OUTPUT], "grad_output", in.outputs.ndim,
                             in.outputs.dims);
    if (grad == NULL) {
        goto done;
    }
    if (py_is_given(given[ARG_GRAD_LSE])) {
        grad_lse = py_float32_shaped(given[ARG_GRAD_LSE], "grad_lse", in.lses.ndim,
                                     in.lses.dims);
        if (grad_lse == NULL) {
            goto done;
        }
    }
    d_outputs = new_stacked(&in.outputs);
    d_lses = new_stacked(&in.lses);
    merge_context context = {.in = &in, .output = grad, .lse = grad_lse};
    if (d_outputs != NULL && d_lses != NULL &&
        run_merge(state, &context, d_outputs, d_lses, call_merge_backward) == 0) {
        result = PyTuple_Pack(2, d_outputs, d_lses);
    }
done:
    Py_XDECREF(d_lses);
    Py_XDECREF(d_outputs);
    Py_XDECREF(grad_lse);
    Py_XDECREF(grad);
    merge_inputs_clear(&in);
    Py_XDECREF(owned);
    return result;
}

const py_function py_merge_functions[] = {
    {&merge_signature, PY_FASTCALL(merge_attention)},
    {&merge_backward_signature, PY_FASTCALL(merge_attention_backward)},
    {0},
};
