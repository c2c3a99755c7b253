/*
 * py_results.c -- what a call returns: arrays, made through NumPy before the core fills
 * them, the outputs of a forward, the gradients of a backward; and tuples of them.
 */
#include "py_call.h" /* Python.h is the first header of all */

#include <string.h>

/* ---- heads that lie inside rows -------------------------------------------------- */

/* (B, x, y, D) as (B, y, x, D), of the same memory; takes the reference. */
static PyArrayObject *
exchanged(PyArrayObject *a)
{
    PyObject *view = a == NULL ? NULL : PyArray_SwapAxes(a, 1, 2);
    Py_XDECREF(a);
    return (PyArrayObject *)view;
}

/* A new array (..., rows, columns) for the core to write. */
static PyArrayObject *
new_result(const py_call *call, py_shape_of of, npy_intp rows, npy_intp columns)
{
    npy_intp dims[PY_MAX_AXES];
    const int ndim = py_shape(call, of, rows, columns, dims);
    if (call->beside == 0) {
        return py_new_float32(ndim, dims);
    }
    npy_intp lies[] = {dims[0], dims[2], dims[1], dims[3]};
    return exchanged(py_new_float32(4, lies));
}

/* ---- outputs --------------------------------------------------------------------- */

/* Features of the output; the scores, where it is those. */
static npy_intp
output_width(const py_call *call)
{
    const attn_problem *p = &call->problem;
    return py_is_of_scores(call) ? p->N : py_has_heads(call) ? p->H : p->Dv;
}

/* A new array (..., M, N) or, without N, (..., M). */
static PyArrayObject *
new_pairs(const py_call *call, bool with_N)
{
    npy_intp dims[PY_MAX_AXES];
    int ndim = py_shape(call, OF_PAIRS, call->problem.M, call->problem.N, dims);
    return py_new_float32(ndim - !with_N, dims);
}

/* How many numbers multi-head attention keeps for its backward. */
static npy_intp
kept_size(const py_call *call)
{
    return (npy_intp)(attn_multi_head_kept(&call->problem) / sizeof(float));
}

/* A layer keeps nothing for keys and values that repeat: their projections are those of each batch
 * element, and the backward makes them again. */
static bool
keeps(const py_call *call)
{
    return call->options.return_kept &&
           !(py_is_of_layer(call->form) && call->memory.kv == NULL &&
             py_repeat_alike(call->arrays[ARG_KEYS], call->arrays[ARG_VALUES]));
}

static int
make_kept(py_call *call)
{
    const npy_intp size = kept_size(call);
    if (size > PY_SSIZE_T_MAX / (npy_intp)sizeof(float)) {
        return py_wrong("arrays_too_large", "(s)", "the projections");
    }
    call->made.kept = py_new_float32(1, &size);
    return call->made.kept == NULL ? -1 : 0;
}

int
py_make_outputs(py_call *call)
{
    const py_options *o = &call->options;
    py_made *to = &call->made;
    const bool lse = o->return_lse &&
                     (!py_is_of_layer(call->form) || attn_reads_saved(&call->problem));
    const npy_intp M = call->problem.M, width = output_width(call);
    npy_intp dims[PY_MAX_AXES];
    to->output = py_is_given(call->given[ARG_OUT])
                     ? py_out(call->given[ARG_OUT],
                              py_shape(call, OF_QUERIES, M, width, dims), dims)
                     : new_result(call, OF_QUERIES, M, width);
    return to->output == NULL ||
                   (o->return_weights &&
                    (to->weights = new_pairs(call, true)) == NULL) ||
                   (lse && (to->lse = new_pairs(call, false)) == NULL) ||
                   (keeps(call) && make_kept(call) < 0)
               ? -1
               : 0;
}

/* A tuple of the objects; not a tuple if it would have one entry. */
static PyObject *
pack(PyObject *const *objects, int count)
{
    PyObject *result = count == 1 ? Py_NewRef(objects[0]) : PyTuple_New(count);
    for (int i = 0; count > 1 && result != NULL && i < count; i++) {
        PyTuple_SET_ITEM(result, i, Py_NewRef(objects[i]));
    }
    return result;
}

PyObject *
py_pack_outputs(const py_call *call)
{
    PyObject *parts[PY_OUTPUTS];
    int count = 0;
    for (int i = 0; i < PY_OUTPUTS; i++) {
        if (call->made.all[i] != NULL) {
            parts[count++] = (PyObject *)call->made.all[i];
        }
    }
    return pack(parts, count);
}

/* ---- what flows into a backward -------------------------------------------------- */

/* dims = the shape of what flows in, that of what the forward returned: output (..., M,
 * Dv), weights (..., M, N), lse (..., M), kept of one axis. How many axes it has. */
static int
shape_of_flow(const py_call *call, py_arg which, npy_intp dims[PY_MAX_AXES])
{
    const attn_problem *p = &call->problem;
    if (which == ARG_KEPT) {
        dims[0] = kept_size(call);
        return 1;
    }
    if (which == ARG_GRAD_OUTPUT || which == ARG_OUTPUT) {
        return py_shape(call, OF_QUERIES, p->M, output_width(call), dims);
    }
    return py_shape(call, OF_PAIRS, p->M, p->N, dims) -
           (which == ARG_GRAD_LSE || which == ARG_LSE);
}

/* That of the output, too, lies as the output does. */
static PyArrayObject *
read_flow(const py_call *call, py_arg which)
{
    npy_intp dims[PY_MAX_AXES];
    const int ndim = shape_of_flow(call, which, dims);
    const char *name = py_argument_rows[which].name;
    PyArrayObject *a = (PyArrayObject *)call->given[which];
    if (call->beside == 0 || (which != ARG_GRAD_OUTPUT && which != ARG_OUTPUT)) {
        return py_float32_shaped((PyObject *)a, name, ndim, dims);
    }
    if (py_check_shape(a, name, ndim, dims) < 0) {
        return NULL;
    }
    PyArrayObject *rows = exchanged((PyArrayObject *)Py_NewRef(a));
    a = rows == NULL ? NULL : py_float32((PyObject *)rows, name);
    Py_XDECREF(rows);
    return exchanged(a);
}

/* Of no use after the backward; only grad_output is required. */
static int
convert_flows(py_call *call)
{
    static const unsigned char flows[] = {
        ARG_GRAD_OUTPUT, ARG_GRAD_WEIGHTS, ARG_GRAD_LSE, ARG_WEIGHTS,
        ARG_OUTPUT,      ARG_LSE,          ARG_KEPT};
    for (size_t i = 0; i < sizeof flows; i++) {
        const py_arg which = flows[i];
        if ((which == ARG_GRAD_OUTPUT || py_is_given(call->given[which])) &&
            py_keep(call, which, read_flow(call, which)) < 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- gradients ------------------------------------------------------------------- */

/* A new array of shape (..., rows, columns) with the leading axes of keys. Key heads
 * that no query has (enable_gqa with 0 query heads) get their zeros here: the core does
 * not know of them. */
static PyArrayObject *
make_key_gradient(const py_call *call, npy_intp rows, npy_intp columns)
{
    PyArrayObject *gradient = new_result(call, OF_KEYS, rows, columns);
    if (gradient != NULL && call->problem.B == 0) {
        memset(PyArray_DATA(gradient), 0, (size_t)PyArray_NBYTES(gradient));
    }
    return gradient;
}

/* Those of the keys; of a memory's, as far as one call takes them. */
static int
make_key_gradients(py_call *call)
{
    const attn_problem *p = &call->problem;
    py_made *d = &call->made;
    npy_intp dims[PY_MAX_AXES];
    if (call->memory.kv == NULL) {
        d->keys = make_key_gradient(call, p->N, p->Dk);
        return d->keys == NULL ? -1 : 0;
    }
    if (d->key_use == NULL) { /* there are no spare arrays */
        d->projected = make_key_gradient(call, p->N,
                                         py_keys_of(call->score)->key_width(p));
        int ndim = py_shape(call, OF_KEYS, p->N, 1, dims);
        d->key_use = (PyArrayObject *)PyArray_SimpleNew(ndim, dims, NPY_UINT8);
    }
    if (d->projected == NULL || d->key_use == NULL) {
        return -1;
    }
    memset(PyArray_DATA(d->key_use), ATTN_UNUSED, (size_t)PyArray_NBYTES(d->key_use));
    return 0;
}

/* *to = a new array like the input, if that is given and its gradient asked for. */
static int
make_if_wanted(const py_call *call, bool wanted, py_arg which, PyArrayObject **to)
{
    PyArrayObject *a = call->arrays[which];
    if (wanted && a != NULL) {
        *to = py_new_float32(PyArray_NDIM(a), PyArray_DIMS(a));
        return *to == NULL ? -1 : 0;
    }
    return 0;
}

/* Those of the parameters, but of those that project the keys of a memory. */
static int
make_parameter_gradients(py_call *call)
{
    const py_score *score = call->score;
    int result = 0;
    for (int i = 0; result == 0 && i < score->parameters; i++) {
        const bool wanted = call->memory.kv == NULL ||
                            !py_keys_of(score)->has(score->score, i);
        result = make_if_wanted(call, wanted, ARG_PARAMETER_0 + i,
                                &call->made.parameters[i]);
    }
    return result;
}

/* A scale that is one number has a scalar, which the core writes like an array. */
static int
make_shared_gradients(py_call *call)
{
    const py_options *o = &call->options;
    py_made *d = &call->made;
    const bool bandwidth = call->score->about->scale == ATTN_SCALE_BANDWIDTH;
    if (make_if_wanted(call, o->return_grad_bias, ARG_BIAS, &d->bias) < 0 ||
        make_if_wanted(call, o->return_grad_sink, ARG_SINK, &d->sink) < 0 ||
        make_if_wanted(call, o->return_grad_scale, ARG_SCALE, &d->scales) < 0) {
        return -1;
    }
    if ((bandwidth || o->return_grad_scale) && d->scales == NULL) {
        d->scale = PyArrayScalar_New(Float);
        return d->scale == NULL ? -1 : 0;
    }
    return 0;
}

int
py_make_gradients(py_call *call)
{
    const attn_problem *p = &call->problem;
    const bool values = !py_is_of_scores(call);
    py_made *d = &call->made;

    if (convert_flows(call) < 0) {
        return -1;
    }
    if (call->memory.kv != NULL && p->B > 0) {
        py_memory_spare(&call->memory, d);
    }
    d->queries = new_result(call, OF_QUERIES, p->M, p->Dq);
    if (d->queries != NULL && d->values == NULL && values) {
        d->values = make_key_gradient(
            call, p->N,
            call->memory.kv == NULL ? p->Dv : py_keys_of(call->score)->value_width(p));
    }
    return d->queries == NULL || (values && d->values == NULL) ||
                   make_key_gradients(call) < 0 || make_shared_gradients(call) < 0 ||
                   make_parameter_gradients(call) < 0
               ? -1
               : 0;
}

/* What there is of dq, dk and dv, and, of a score with parameters, theirs, as a named
 * tuple, in which dv stays, as None; a layer adds those up. Of a memory a layer has dq
 * alone; for a function dk and dv are those of what is projected, and who projects gets
 * None. How many parts these are, or 0; *named, NULL before, is such a tuple. */
static int
first_parts(const attnext_state *state, const py_call *call, PyObject **parts,
            PyObject **named)
{
    const py_score *score = call->score;
    const py_made *d = &call->made;
    const bool layer = py_is_of_layer(call->form);
    const bool names = score->parameters > 0 && !layer;
    int count = layer && call->memory.kv != NULL ? 1
                : d->values != NULL || names     ? 3
                                                 : 2;
    parts[0] = (PyObject *)d->queries;
    parts[1] = (PyObject *)(call->memory.kv == NULL ? d->keys : d->projected);
    parts[2] = py_or_none(d->values);
    if (!names) {
        return count;
    }
    for (int i = 0; i < score->parameters; i++) {
        parts[count++] = py_or_none(d->parameters[i]);
    }
    PyObject *kind = state->gradients[score - state->scores];
    *named = PyObject_Vectorcall(kind, parts, (size_t)count, NULL);
    parts[0] = *named;
    return *named != NULL;
}

/* Behind them that of a bandwidth; and what was asked for: those of bias and sink, None
 * without one, and of a scale that is a factor. */
PyObject *
py_pack_gradients(const attnext_state *state, const py_call *call)
{
    PyObject *parts[3 + ATTN_PARAMETERS + 3], *named = NULL;
    const py_made *d = &call->made;
    const py_options *o = &call->options;
    PyObject *scale = d->scale != NULL ? d->scale : (PyObject *)d->scales;
    int count = first_parts(state, call, parts, &named);
    if (count == 0) {
        return NULL;
    }
    if (call->score->about->scale == ATTN_SCALE_BANDWIDTH) {
        parts[count++] = scale;
    }
    if (o->return_grad_bias) {
        parts[count++] = py_or_none(d->bias);
    }
    if (o->return_grad_sink) {
        parts[count++] = py_or_none(d->sink);
    }
    if (o->return_grad_scale) {
        parts[count++] = scale;
    }
    PyObject *result = pack(parts, count);
    Py_XDECREF(named);
    return result;
}

/* ---- giving up ------------------------------------------------------------------- */

void
py_made_clear(py_made *made, int count)
{
    for (int i = 0; i < count; i++) {
        Py_CLEAR(made->all[i]);
    }
}
