/*
 * py_softmax.c -- masked_softmax, its backward, and sequence_mask.
 */
#include "py_attnext.h"
#include "py_run.h"

/* Multiply-adds one element of a softmax counts as, its share of an exp included. */
static const double SOFTMAX_WORK = 8.0;

/* The shape of an array of scores (..., M, N), noted before reading the other arguments
 * runs Python code, which may reshape an array in place. */
typedef struct {
    int ndim;
    npy_intp dims[PY_MAX_AXES];
    npy_intp B, M, N; /* 1 for an axis that is not there */
    py_place place;
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
    s->place = py_place_of(X);
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
softmax_masks_read(softmax_masks *m, PyObject *const *given, const scores_shape *s,
                   PyArrayObject *out)
{
    if (py_valid_lens(given[ARG_VALID_LENS], s->ndim - 1, s->dims, s->N, out,
                      &m->masks.valid, &m->lens, m->few_lens) < 0) {
        return -1;
    }
    if (py_is_given(given[ARG_MASK])) {
        m->mask = py_pairs(given[ARG_MASK], ARG_MASK, false, s->ndim, s->dims, out,
                           &m->masks.mask);
        return m->mask == NULL ? -1 : 0;
    }
    return 0;
}

/* A call f(X, lens) has failed, for whatever reason: if integers came as X and floats
 * of more axes as the lengths, the two are swapped, and that is what is wrong. */
static void
notice_swapped(const char *function, PyObject *const *given, py_arg which,
               const char *name)
{
    bool swapped = false;
    PyObject *type, *value, *traceback;
    if (!py_is_given(given[ARG_X]) || !py_is_given(given[which]) ||
        (!PyErr_ExceptionMatches(PyExc_TypeError) &&
         !PyErr_ExceptionMatches(PyExc_ValueError))) {
        return;
    }
    PyErr_Fetch(&type, &value, &traceback);
    PyArrayObject *X = py_read_array(given[ARG_X], "X");
    PyArrayObject *lens = X == NULL ? NULL : py_read_array(given[which], name);
    if (lens != NULL) {
        swapped = PyArray_ISINTEGER(X) && PyArray_ISFLOAT(lens) &&
                  PyArray_NDIM(lens) > PyArray_NDIM(X);
    }
    Py_XDECREF(lens);
    Py_XDECREF(X);
    if (!swapped) {
        PyErr_Clear();
        PyErr_Restore(type, value, traceback);
        return;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    PyErr_Format(PyExc_TypeError,
                 "X holds integers and %s floats, as if they were swapped: expected "
                 "%s(X, %s)",
                 name, function, name);
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
    PyObject *given[ARG_COUNT];
    PyArrayObject *out = NULL, *X = NULL, *weights = NULL;
    softmax_masks who;
    attn_empty_rows empty_rows;
    scores_shape s;
    int result = -1;

    softmax_masks_init(&who);
    if (py_parse(state, &masked_softmax_signature, args, nargs, kwnames, given) < 0 ||
        read_rule(given, &empty_rows) < 0 || py_out(given[ARG_OUT], &out) < 0) {
        goto done;
    }
    X = py_float32(given[ARG_X], "X", out);
    if (X == NULL || read_shape(X, "X", &s) < 0 ||
        softmax_masks_read(&who, given, &s, out) < 0 ||
        py_check_place(X, &s.place, "X") < 0) {
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
        notice_swapped("masked_softmax", given, ARG_VALID_LENS, "valid_lens");
        Py_CLEAR(weights);
    }
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
    PyObject *given[ARG_COUNT];
    PyArrayObject *weights = NULL, *grad = NULL, *dX = NULL;
    softmax_masks who;
    attn_empty_rows empty_rows;
    scores_shape s;
    int result = -1;

    softmax_masks_init(&who);
    if (py_parse(state, &masked_softmax_backward_signature, args, nargs, kwnames,
                 given) < 0 ||
        read_rule(given, &empty_rows) < 0) {
        goto done;
    }
    weights = py_float32(given[ARG_WEIGHTS], "weights", NULL);
    if (weights == NULL || read_shape(weights, "weights", &s) < 0) {
        goto done;
    }
    grad = py_float32_shaped(given[ARG_GRAD_OUTPUT], "grad_output", NULL, s.ndim,
                             s.dims);
    if (grad == NULL) {
        goto done;
    }
    const py_place place = py_place_of(grad);
    if (softmax_masks_read(&who, given, &s, NULL) < 0 ||
        py_check_place(weights, &s.place, "weights") < 0 ||
        py_check_place(grad, &place, "grad_output") < 0) {
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
    PyObject *given[ARG_COUNT];
    PyArrayObject *X = NULL, *lens = NULL, *copy = NULL;
    npy_intp dims[PY_MAX_AXES];
    double value = 0.0;
    int result = -1;

    if (py_parse(state, &sequence_mask_signature, args, nargs, kwnames, given) < 0 ||
        (given[ARG_VALUE] != NULL &&
         py_number(given[ARG_VALUE], "value", false, &value) < 0)) {
        goto done;
    }
    X = py_float32(given[ARG_X], "X", NULL);
    if (X == NULL) {
        goto done;
    }
    int ndim = PyArray_NDIM(X);
    if (ndim < 2) {
        py_shape_error(X, "X", "two axes or more: (B, T, ...)");
        goto done;
    }
    py_note_shape(X, dims);
    const py_place place = py_place_of(X);
    lens = py_lens_per_entry(given[ARG_VALID_LEN], "valid_len", dims[0], dims[1],
                             PyArray_SIZE(X) > 0);
    if (lens == NULL || py_check_place(X, &place, "X") < 0) {
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
        notice_swapped("sequence_mask", given, ARG_VALID_LEN, "valid_len");
        Py_CLEAR(copy);
    }
    return (PyObject *)copy;
}

const py_function py_softmax_functions[] = {
    {&masked_softmax_signature, PY_FASTCALL(masked_softmax)},
    {&masked_softmax_backward_signature, PY_FASTCALL(masked_softmax_backward)},
    {&sequence_mask_signature, PY_FASTCALL(sequence_mask)},
    {0},
};
