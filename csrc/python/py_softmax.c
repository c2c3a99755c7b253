/*
 * py_softmax.c -- masked_softmax, its backward, and sequence_mask.
 */
#include "py_attnext.h"
#include "py_run.h"

/* Multiply-adds one element of a softmax counts as, its share of an exp included. */
static const double SOFTMAX_WORK = 8.0;

/* The shape of an array of scores (..., M, N). */
typedef struct {
    int ndim;
    npy_intp dims[PY_MAX_AXES];
    npy_intp B, M, N; /* 1 for an axis that is not there */
} scores_shape;

static int
read_shape(PyArrayObject *X, const char *name, scores_shape *s)
{
    int ndim = PyArray_NDIM(X);
    if (ndim == 0) {
        py_shape_error(X, name, "one axis or more: (..., M, N)");
        return -1;
    }
    s->ndim = ndim;
    py_note_shape(X, s->dims);
    s->N = s->dims[ndim - 1];
    s->M = ndim > 1 ? s->dims[ndim - 2] : 1;
    s->B = ndim > 2 ? PyArray_MultiplyList(s->dims, ndim - 2) : 1;
    return 0;
}

/* Who takes part in a softmax. All owned; starts as softmax_masks_init() leaves it. */
typedef struct {
    PyArrayObject *lens, *mask;
    attn_masks masks;              /* points into the arrays above and below */
    int64_t few_lens[PY_FEW_LENS]; /* not set to zero first */
} softmax_masks;

static void
softmax_masks_init(softmax_masks *m)
{
    m->lens = m->mask = NULL;
    m->masks = (attn_masks){0};
}

/* valid_lens and mask, in the shapes they may have for an array of scores s. */
static int
softmax_masks_read(softmax_masks *m, PyObject *const *given, const scores_shape *s)
{
    if (py_valid_lens(given[ARG_VALID_LENS], s->ndim - 1, s->dims, s->N,
                      &m->masks.valid, &m->lens, m->few_lens) < 0) {
        return -1;
    }
    if (py_is_given(given[ARG_MASK])) {
        m->mask = py_pairs(given[ARG_MASK], ARG_MASK, false, s->ndim, s->dims,
                           &m->masks.mask);
        return m->mask == NULL ? -1 : 0;
    }
    return 0;
}

static void
softmax_masks_clear(softmax_masks *m)
{
    Py_CLEAR(m->lens);
    Py_CLEAR(m->mask);
    py_view_clear(&m->masks.mask);
}

static const py_signature masked_softmax_signature = {
    .function = "masked_softmax",
    .required = 1,
    .positional = 2,
    .args = {ARG_X, ARG_VALID_LENS, ARG_MASK, ARG_EMPTY_ROWS, ARG_OUT},
};

/* A call into the core, of either function: out = f(x, y). */
typedef struct {
    PyArrayObject *out, *x, *y; /* y: backward */
    const scores_shape *shape;
    const attn_masks *masks;
    attn_empty_rows empty_rows;
} softmax_context;

static int
call_softmax(const void *context, void *Py_UNUSED(scratch), attn_run *run)
{
    const softmax_context *c = context;
    const scores_shape *s = c->shape;
    return attn_masked_softmax(py_data(c->out), py_data(c->x), s->B, s->M, s->N,
                               c->masks, c->empty_rows, run);
}

static int
call_softmax_backward(const void *context, void *Py_UNUSED(scratch), attn_run *run)
{
    const softmax_context *c = context;
    const scores_shape *s = c->shape;
    return attn_masked_softmax_backward(py_data(c->out), py_data(c->y), py_data(c->x),
                                        s->B, s->M, s->N, c->masks, c->empty_rows, run);
}

static int
run_softmax(const attnext_state *state, const softmax_context *c, py_core_call *call)
{
    double size = (double)PyArray_SIZE(c->out);
    return size == 0.0 ? 0 : py_run(state, SOFTMAX_WORK * size, NULL, call, c);
}

/* empty_rows, "uniform" unless given. */
static int
read_rule(PyObject *const *given, attn_empty_rows *rule)
{
    PyObject *object = given[ARG_EMPTY_ROWS];
    *rule = ATTN_EMPTY_UNIFORM;
    return object == NULL ? 0 : py_read_rule(object, "empty_rows", rule);
}

static PyObject *
masked_softmax(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
               PyObject *kwnames)
{
    const attnext_state *state = py_state_of_module(module);
    PyObject *given[ARG_COUNT], *owned = NULL;
    PyArrayObject *out = NULL, *X = NULL, *weights = NULL;
    softmax_masks who;
    attn_empty_rows empty_rows;
    scores_shape s;
    int result = -1;

    softmax_masks_init(&who);
    if (py_parse_plain(state, &masked_softmax_signature, args, nargs, kwnames, given,
                       &owned) < 0 ||
        read_rule(given, &empty_rows) < 0 || py_out(given[ARG_OUT], &out) < 0) {
        goto done;
    }
    X = py_float32(given[ARG_X], "X");
    if (X == NULL || read_shape(X, "X", &s) < 0 ||
        softmax_masks_read(&who, given, &s) < 0) {
        goto done;
    }
    if (out == NULL) {
        weights = py_new_float32(s.ndim, s.dims);
    } else if (py_check_shape(out, "out", s.ndim, s.dims) == 0) {
        weights = (PyArrayObject *)Py_NewRef(out);
    }
    if (weights != NULL) {
        const softmax_context context = {weights, X, NULL, &s, &who.masks, empty_rows};
        result = run_softmax(state, &context, call_softmax);
    }
done:
    softmax_masks_clear(&who);
    Py_XDECREF(X);
    Py_XDECREF(out);
    if (result < 0) {
        py_notice_swapped(state, &masked_softmax_signature, given);
        Py_CLEAR(weights);
    }
    Py_XDECREF(owned);
    return (PyObject *)weights;
}

static const py_signature masked_softmax_backward_signature = {
    .function = "masked_softmax_backward",
    .required = 2,
    .positional = 3,
    .args = {ARG_GRAD_OUTPUT, ARG_WEIGHTS, ARG_VALID_LENS, ARG_MASK, ARG_EMPTY_ROWS},
};

static PyObject *
masked_softmax_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                        PyObject *kwnames)
{
    const attnext_state *state = py_state_of_module(module);
    PyObject *given[ARG_COUNT], *owned = NULL;
    PyArrayObject *weights = NULL, *grad = NULL, *dX = NULL;
    softmax_masks who;
    attn_empty_rows empty_rows;
    scores_shape s;
    int result = -1;

    softmax_masks_init(&who);
    if (py_parse_plain(state, &masked_softmax_backward_signature, args, nargs, kwnames,
                       given, &owned) < 0 ||
        read_rule(given, &empty_rows) < 0) {
        goto done;
    }
    weights = py_float32(given[ARG_WEIGHTS], "weights");
    if (weights == NULL || read_shape(weights, "weights", &s) < 0) {
        goto done;
    }
    grad = py_float32_shaped(given[ARG_GRAD_OUTPUT], "grad_output", s.ndim, s.dims);
    if (grad == NULL || softmax_masks_read(&who, given, &s) < 0) {
        goto done;
    }
    dX = py_new_float32(s.ndim, s.dims);
    if (dX != NULL) {
        const softmax_context context = {dX, weights, grad, &s, &who.masks, empty_rows};
        result = run_softmax(state, &context, call_softmax_backward);
    }
done:
    softmax_masks_clear(&who);
    Py_XDECREF(grad);
    Py_XDECREF(weights);
    Py_XDECREF(owned);
    if (result < 0) {
        Py_CLEAR(dX);
    }
    return (PyObject *)dX;
}

static const py_signature sequence_mask_signature = {
    .function = "sequence_mask",
    .required = 2,
    .positional = 3,
    .args = {ARG_X, ARG_VALID_LEN, ARG_VALUE},
};

typedef struct {
    PyArrayObject *copy, *X, *lens;
    float value;
    npy_intp B, T, inner;
} sequence_context;

static int
call_sequence_mask(const void *context, void *Py_UNUSED(scratch), attn_run *run)
{
    const sequence_context *c = context;
    return attn_sequence_mask(py_data(c->copy), py_data(c->X), PyArray_DATA(c->lens),
                              c->value, c->B, c->T, c->inner, run);
}

static PyObject *
sequence_mask(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
              PyObject *kwnames)
{
    const attnext_state *state = py_state_of_module(module);
    PyObject *given[ARG_COUNT], *owned = NULL;
    PyArrayObject *X = NULL, *lens = NULL, *copy = NULL;
    npy_intp dims[PY_MAX_AXES];
    double value = 0.0;
    int result = -1;

    if (py_parse_plain(state, &sequence_mask_signature, args, nargs, kwnames, given,
                       &owned) < 0 ||
        (given[ARG_VALUE] != NULL &&
         py_number(given[ARG_VALUE], "value", false, &value) < 0)) {
        goto done;
    }
    X = py_float32(given[ARG_X], "X");
    if (X == NULL) {
        goto done;
    }
    int ndim = PyArray_NDIM(X);
    if (ndim < 2) {
        py_shape_error(X, "X", "two axes or more: (B, T, ...)");
        goto done;
    }
    py_note_shape(X, dims);
    lens = py_lens_per_entry(given[ARG_VALID_LEN], "valid_len", dims[0], dims[1],
                             PyArray_SIZE(X) > 0);
    if (lens == NULL) {
        goto done;
    }
    copy = py_new_float32(ndim, dims);
    if (copy != NULL) {
        const sequence_context context = {copy,
                                          X,
                                          lens,
                                          (float)value,
                                          dims[0],
                                          dims[1],
                                          PyArray_MultiplyList(dims + 2, ndim - 2)};
        double size = (double)PyArray_SIZE(copy);
        result = size == 0.0 ? 0
                             : py_run(state, size, NULL, call_sequence_mask, &context);
    }
done:
    Py_XDECREF(lens);
    Py_XDECREF(X);
    if (result < 0) {
        py_notice_swapped(state, &sequence_mask_signature, given);
        Py_CLEAR(copy);
    }
    Py_XDECREF(owned);
    return (PyObject *)copy;
}

const py_function py_softmax_functions[] = {
    {&masked_softmax_signature, PY_FASTCALL(masked_softmax)},
    {&masked_softmax_backward_signature, PY_FASTCALL(masked_softmax_backward)},
    {&sequence_mask_signature, PY_FASTCALL(sequence_mask)},
    {0},
};
