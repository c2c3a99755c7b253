/*
 * py_attention.c -- the one path from Python objects to attn_forward, attn_backward,
 * attn_scores and attn_scores_backward. The exposed functions (py_functions.c) and
 * layers (py_layer_call.c) take it:
 *
 *     convert and check the inputs
 *     allocate the outputs through NumPy
 *     call the core (py_run.c)
 *     one exit, which gives up what is not returned
 */
#include "../core/arena.h"
#include "py_call.h"
#include "py_run.h"

#include <string.h>

static bool
is_empty(PyArrayObject *a)
{
    return a == NULL || PyArray_SIZE(a) == 0;
}

/* The inputs as the core reads them. */
static attn_inputs
operands(const py_inputs *in)
{
    const attn_problem *p = &in->problem;
    return (attn_inputs){
        .queries = attn_dense(py_data(in->arrays[ARG_QUERIES]), p->M, p->Dq),
        .keys = attn_dense(py_data(in->arrays[ARG_KEYS]), in->key_rows, p->Dk),
        .values = attn_dense(py_data(in->arrays[ARG_VALUES]), in->key_rows, p->Dv),
    };
}

/* ---- forward --------------------------------------------------------------------- */

/* output (..., M, Dv): out or new; weights (..., M, N) and lse (..., M) if wanted. */
static int
make_outputs(const py_options *o, const py_inputs *in, PyArrayObject *out,
             py_outputs *outputs)
{
    const attn_problem *p = &in->problem;
    npy_intp dims[PY_MAX_AXES];

    py_query_shape(in, p->M, py_output_width(in), dims);
    if (out == NULL) {
        outputs->output = py_new_float32(in->ndim, dims);
    } else if (py_check_shape(out, "out", in->ndim, dims) == 0) {
        outputs->output = (PyArrayObject *)Py_NewRef(out);
    }
    if (outputs->output == NULL) {
        return -1;
    }
    py_pair_shape(in, p->M, p->N, dims);
    if (o->return_weights &&
        (outputs->weights = py_new_float32(in->pair_ndim, dims)) == NULL) {
        return -1;
    }
    if (o->return_lse &&
        (outputs->lse = py_new_float32(in->pair_ndim - 1, dims)) == NULL) {
        return -1;
    }
    return 0;
}

/* What multi-head attention keeps for its backward: so many numbers. */
static npy_intp
kept_size(const py_inputs *in)
{
    return (npy_intp)(attn_multi_head_kept(&in->problem) / sizeof(float));
}

/* Aligned, as a view: of rows that are not, multi-head attention takes 4 to 8 % longer. */
static int
make_kept(const py_inputs *in, py_outputs *outputs)
{
    const npy_intp spare = ATTN_ALIGN / sizeof(float);
    npy_intp size = kept_size(in), room = size + spare;
    if (size > PY_SSIZE_T_MAX / (npy_intp)sizeof(float) - spare) {
        PyErr_SetString(PyExc_ValueError,
                        "the arrays are too large: the memory that the projections "
                        "need has a size that overflows");
        return -1;
    }
    PyArrayObject *memory = py_new_float32(1, &room);
    if (memory == NULL) {
        return -1;
    }
    npy_intp skip = (npy_intp)(-(uintptr_t)PyArray_DATA(memory) % ATTN_ALIGN);
    skip /= (npy_intp)sizeof(float);
    outputs->kept = (PyArrayObject *)PySequence_GetSlice((PyObject *)memory, skip,
                                                         skip + size);
    Py_DECREF(memory);
    return outputs->kept == NULL ? -1 : 0;
}

typedef struct {
    const py_inputs *in;
    const py_outputs *outputs;
} forward_context;

static size_t
forward_workspace(const void *context, int threads)
{
    const forward_context *f = context;
    const attn_problem *p = &f->in->problem;
    return p->heads > 0
               ? attn_multi_head_workspace(p, f->outputs->kept != NULL, threads)
               : attn_forward_workspace(p, threads);
}

static int
call_forward(const void *context, void *scratch, attn_run *run)
{
    const forward_context *f = context;
    const attn_problem *p = &f->in->problem;
    const attn_inputs inputs = operands(f->in);
    float *output = py_data(f->outputs->output), *lse = py_data(f->outputs->lse);
    float *weights = py_data(f->outputs->weights);
    return p->heads > 0 ? attn_multi_head_forward(output, weights, lse,
                                                  py_data(f->outputs->kept), &inputs, p,
                                                  scratch, run)
                        : attn_forward(output, weights, lse, &inputs, p, scratch, run);
}

static double
work_of(const attn_problem *p, bool backward)
{
    return p->heads > 0 ? attn_multi_head_work(p, backward)
           : backward   ? attn_backward_work(p)
                        : attn_forward_work(p);
}

int
py_forward(const attnext_state *state, const py_call *call, py_inputs *in,
           py_outputs *outputs)
{
    const forward_context context = {in, outputs};
    PyArrayObject *out = NULL;
    int result = -1;

    py_inputs_init(in);
    *outputs = (py_outputs){0};
    if (py_out(call->given[ARG_OUT], &out) < 0 || py_inputs_read(in, call, out) < 0 ||
        py_inputs_check(state, in, call->score) < 0 ||
        make_outputs(&call->options, in, out, outputs) < 0 ||
        (call->options.return_kept && make_kept(in, outputs) < 0)) {
        goto done;
    }
    if (is_empty(outputs->output) && is_empty(outputs->weights) &&
        is_empty(outputs->lse)) {
        result = 0; /* nothing to write, however large the other sizes */
        goto done;
    }
    result = py_run(state, work_of(&in->problem, false), forward_workspace,
                    call_forward, &context);
done:
    Py_XDECREF(out);
    if (result < 0) {
        py_inputs_clear(in);
        py_outputs_clear(outputs);
    }
    return result;
}

/* ---- backward -------------------------------------------------------------------- */

/* What flows in, and what the forward returned: of no use after the backward. */
enum { GRAD_OUTPUT, GRAD_WEIGHTS, GRAD_LSE, WEIGHTS, OUTPUT, LSE, KEPT, FLOWS };
typedef enum { OF_OUTPUT, OF_WEIGHTS, OF_LSE, OF_KEPT } flow_shape;

/* Without values it is a call of the scores alone, and their gradient that flows in. */
static bool
is_of_scores(const py_inputs *in)
{
    return in->arrays[ARG_VALUES] == NULL;
}

/* dims = the shape of what flows in; how many axes it has. */
static int
shape_of_flow(const py_inputs *in, flow_shape shape, npy_intp dims[PY_MAX_AXES])
{
    const attn_problem *p = &in->problem;
    if (shape == OF_KEPT) {
        dims[0] = kept_size(in);
        return 1;
    }
    if (shape == OF_OUTPUT && !is_of_scores(in)) {
        py_query_shape(in, p->M, py_output_width(in), dims);
        return in->ndim;
    }
    py_pair_shape(in, p->M, p->N, dims);
    return in->pair_ndim - (shape == OF_LSE);
}

/* grad_output is required; output (..., M, Dv), weights (..., M, N), lse (..., M), kept
 * of one axis. */
static int
convert_flows(const py_call *call, const py_inputs *in, PyArrayObject *flows[FLOWS])
{
    static const struct {
        py_arg arg;
        const char *name;
        flow_shape shape;
    } table[FLOWS] = {
        [GRAD_OUTPUT] = {ARG_GRAD_OUTPUT, "grad_output", OF_OUTPUT},
        [GRAD_WEIGHTS] = {ARG_GRAD_WEIGHTS, "grad_weights", OF_WEIGHTS},
        [GRAD_LSE] = {ARG_GRAD_LSE, "grad_lse", OF_LSE},
        [WEIGHTS] = {ARG_WEIGHTS, "weights", OF_WEIGHTS},
        [OUTPUT] = {ARG_OUTPUT, "output", OF_OUTPUT},
        [LSE] = {ARG_LSE, "lse", OF_LSE},
        [KEPT] = {ARG_KEPT, "kept", OF_KEPT},
    };
    py_place places[FLOWS];
    for (int i = 0; i < FLOWS; i++) {
        PyObject *given = call->given[table[i].arg];
        npy_intp dims[PY_MAX_AXES];
        if (i != GRAD_OUTPUT && !py_is_given(given)) {
            continue;
        }
        int ndim = shape_of_flow(in, table[i].shape, dims);
        flows[i] = py_float32_shaped(given, table[i].name, NULL, ndim, dims);
        if (flows[i] == NULL) {
            return -1;
        }
        places[i] = py_place_of(flows[i]);
    }
    for (int i = 0; i < FLOWS; i++) {
        if (flows[i] != NULL &&
            py_check_place(flows[i], &places[i], table[i].name) < 0) {
            return -1;
        }
    }
    return 0;
}

/* The parameters' gradients, each in the shape in which the parameter came. */
static int
make_parameter_gradients(const py_call *call, const py_inputs *in, py_gradients *d)
{
    const py_score *score = call->score;
    for (int i = 0; i < score->parameters; i++) {
        PyArrayObject *parameter = in->arrays[ARG_PARAMETER_0 + i];
        npy_intp dims[PY_PARAMETER_AXES];
        if (parameter == NULL || (call->memory != NULL && py_projects_keys(score, i))) {
            continue;
        }
        const char *letters = score->about->parameters[i].shape;
        int ndim = py_letter_shape(letters, in->sizes, dims);
        int missing = letters[0] == '1' && PyArray_NDIM(parameter) < ndim;
        d->parameters[i] = py_new_float32(ndim - missing, dims + missing);
        if (d->parameters[i] == NULL) {
            return -1;
        }
    }
    return 0;
}

/* A new array of shape (..., rows, columns) with the leading axes of keys. Key heads
 * that no query has (enable_gqa with 0 query heads) get their zeros here: the core does
 * not know of them. */
static PyArrayObject *
make_key_gradient(const py_inputs *in, npy_intp rows, npy_intp columns)
{
    npy_intp dims[PY_MAX_AXES];
    py_key_shape(in, rows, columns, dims);
    PyArrayObject *gradient = py_new_float32(in->ndim, dims);
    if (gradient != NULL && in->problem.B == 0) {
        memset(PyArray_DATA(gradient), 0, (size_t)PyArray_NBYTES(gradient));
    }
    return gradient;
}

/* Those of the keys; of a memory's, as far as one call takes them. */
static int
make_key_gradients(const py_call *call, const py_inputs *in, py_gradients *d)
{
    const attn_problem *p = &in->problem;
    npy_intp dims[PY_MAX_AXES];
    if (call->memory == NULL) {
        d->keys = make_key_gradient(in, p->N, p->Dk);
        return d->keys == NULL ? -1 : 0;
    }
    if (d->key_use == NULL) { /* there are no spare arrays */
        d->projected = make_key_gradient(in, p->N, py_key_width(p));
        py_key_shape(in, p->N, 1, dims);
        d->key_use = (PyArrayObject *)PyArray_SimpleNew(in->ndim, dims, NPY_UINT8);
    }
    if (d->projected == NULL || d->key_use == NULL) {
        return -1;
    }
    memset(PyArray_DATA(d->key_use), ATTN_UNUSED, (size_t)PyArray_NBYTES(d->key_use));
    return 0;
}

static int
make_gradients(const py_call *call, const py_inputs *in, py_gradients *d)
{
    const attn_problem *p = &in->problem;
    npy_intp dims[PY_MAX_AXES];
    py_query_shape(in, p->M, p->Dq, dims);

    if (call->memory != NULL && p->B > 0) {
        py_memory_spare(call->memory, d);
    }
    d->queries = py_new_float32(in->ndim, dims);
    if (d->values == NULL && !is_of_scores(in)) {
        npy_intp width = call->memory != NULL ? py_value_width(p) : p->Dv;
        d->values = make_key_gradient(in, p->N, width);
    }
    if (d->queries == NULL || (d->values == NULL && !is_of_scores(in)) ||
        make_key_gradients(call, in, d) < 0) {
        return -1;
    }
    if (call->options.return_grad_bias && in->arrays[ARG_BIAS] != NULL &&
        (d->bias = py_new_float32(in->bias_ndim, in->bias_dims)) == NULL) {
        return -1;
    }
    if (call->options.return_grad_sink && in->arrays[ARG_SINK] != NULL &&
        (d->sink = py_new_float32(in->sink_ndim, in->sink_dims)) == NULL) {
        return -1;
    }
    if (call->options.return_grad_scale && in->arrays[ARG_SCALE] != NULL &&
        (d->scales = py_new_float32(in->scale_ndim, in->scale_dims)) == NULL) {
        return -1;
    }
    return make_parameter_gradients(call, in, d);
}

typedef struct {
    const py_inputs *in;
    attn_gradients to;
    attn_grad_outputs from;
    attn_saved saved;
    const void *kept; /* multi-head; or NULL */
} backward_context;

static size_t
backward_workspace(const void *context, int threads)
{
    const backward_context *b = context;
    const attn_problem *p = &b->in->problem;
    return p->heads > 0 ? attn_multi_head_backward_workspace(p, &b->to, &b->from,
                                                             b->kept != NULL, threads)
                        : attn_backward_workspace(p, &b->to, &b->from, threads);
}

static int
call_backward(const void *context, void *scratch, attn_run *run)
{
    const backward_context *b = context;
    const attn_problem *p = &b->in->problem;
    const attn_inputs inputs = operands(b->in);
    return p->heads > 0
               ? attn_multi_head_backward(&b->to, &b->from, &b->saved, b->kept, &inputs,
                                          p, scratch, run)
               : attn_backward(&b->to, &b->from, &b->saved, &inputs, p, scratch, run);
}

/* Where the gradient of the scale goes; NULL: it is not wanted. */
static float *
scale_gradient(const py_call *call, py_gradients *d)
{
    bool bandwidth = call->score->about->scale == ATTN_SCALE_BANDWIDTH;
    float *factor = d->scales == NULL     ? &d->scale
                    : is_empty(d->scales) ? NULL
                                          : py_data(d->scales);
    return bandwidth || call->options.return_grad_scale ? factor : NULL;
}

static size_t
scores_backward_workspace(const void *context, int threads)
{
    const backward_context *b = context;
    return attn_scores_backward_workspace(&b->in->problem, &b->to, threads);
}

static int
call_scores_backward(const void *context, void *scratch, attn_run *run)
{
    const backward_context *b = context;
    const attn_inputs inputs = operands(b->in);
    return attn_scores_backward(&b->to, b->from.output, &inputs, &b->in->problem,
                                scratch, run);
}

/* Calls the core on inputs and gradients that are ready. */
static int
run_backward(const attnext_state *state, const py_call *call, const py_inputs *in,
             PyArrayObject *const flows[FLOWS], py_gradients *d)
{
    bool scores = is_of_scores(in);
    backward_context context = {
        .in = in,
        .to = {.queries = py_data(d->queries),
               .keys = py_data(d->keys),
               .values = py_data(d->values),
               .scale = scale_gradient(call, d),
               .projected = py_data(d->projected),
               .key_use = d->key_use == NULL ? NULL : PyArray_DATA(d->key_use),
               .bias = is_empty(d->bias) ? NULL : py_data(d->bias),
               .sink = is_empty(d->sink) ? NULL : py_data(d->sink)},
        .from = {.output = py_data(flows[GRAD_OUTPUT]),
                 .weights = py_data(flows[GRAD_WEIGHTS]),
                 .lse = py_data(flows[GRAD_LSE])},
        .saved = {.output = py_data(flows[OUTPUT]),
                  .weights = py_data(flows[WEIGHTS]),
                  .lse = py_data(flows[LSE])},
        .kept = py_data(flows[KEPT]),
    };
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        context.to.parameters[i] = py_data(d->parameters[i]);
    }
    return py_run(state, work_of(&in->problem, true),
                  scores ? scores_backward_workspace : backward_workspace,
                  scores ? call_scores_backward : call_backward, &context);
}

int
py_backward(const attnext_state *state, const py_call *call, py_inputs *in,
            py_gradients *gradients)
{
    PyArrayObject *flows[FLOWS] = {0};
    int result = -1;

    py_inputs_init(in);
    *gradients = (py_gradients){0};
    if (py_inputs_read(in, call, NULL) == 0 && convert_flows(call, in, flows) == 0 &&
        py_inputs_check(state, in, call->score) == 0 &&
        make_gradients(call, in, gradients) == 0) {
        result = run_backward(state, call, in, flows, gradients);
    }
    for (int i = 0; i < FLOWS; i++) {
        Py_XDECREF(flows[i]);
    }
    if (result < 0) {
        py_inputs_clear(in);
        py_gradients_clear(gradients);
    }
    return result;
}

/* ---- scores ---------------------------------------------------------------------- */

typedef struct {
    const py_inputs *in;
    float *scores;
} scores_context;

static size_t
scores_workspace(const void *context, int threads)
{
    const scores_context *s = context;
    return attn_scores_workspace(&s->in->problem, threads);
}

static int
call_scores(const void *context, void *scratch, attn_run *run)
{
    const scores_context *s = context;
    const attn_inputs inputs = operands(s->in);
    return attn_scores(s->scores, &inputs, &s->in->problem, scratch, run);
}

PyArrayObject *
py_scores(const attnext_state *state, const py_call *call)
{
    py_inputs in;
    PyArrayObject *scores = NULL;
    npy_intp dims[PY_MAX_AXES];

    py_inputs_init(&in);
    if (py_inputs_read(&in, call, NULL) == 0 &&
        py_inputs_check(state, &in, call->score) == 0) {
        py_query_shape(&in, in.problem.M, in.problem.N, dims);
        scores = py_new_float32(in.ndim, dims);
    }
    if (!is_empty(scores)) {
        const scores_context context = {&in, py_data(scores)};
        if (py_run(state, attn_forward_work(&in.problem), scores_workspace, call_scores,
                   &context) < 0) {
            Py_CLEAR(scores);
        }
    }
    py_inputs_clear(&in);
    return scores;
}

/* ---- giving up ------------------------------------------------------------------- */

void
py_outputs_clear(py_outputs *outputs)
{
    Py_CLEAR(outputs->output);
    Py_CLEAR(outputs->weights);
    Py_CLEAR(outputs->lse);
    Py_CLEAR(outputs->kept);
}

void
py_gradients_clear(py_gradients *d)
{
    Py_CLEAR(d->queries);
    Py_CLEAR(d->keys);
    Py_CLEAR(d->values);
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        Py_CLEAR(d->parameters[i]);
    }
    Py_CLEAR(d->bias);
    Py_CLEAR(d->sink);
    Py_CLEAR(d->scales);
    Py_CLEAR(d->projected);
    Py_CLEAR(d->key_use);
}
