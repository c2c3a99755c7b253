/*
 * py_attention.c -- the one path from Python objects to attn_forward, attn_backward,
 * attn_scores and attn_scores_backward. The exposed functions (py_functions.c) and
 * layers (py_layer_call.c) take it:
 *
 *     convert and check the inputs
 *     allocate the outputs through NumPy (py_results.c)
 *     call the core (py_run.c)
 *     one exit, which gives up what is not returned
 */
#include "py_call.h"
#include "py_run.h"

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

typedef struct {
    const py_inputs *in;
    const py_outputs *outputs;
} forward_context;

static size_t
forward_workspace(const void *context, int threads)
{
    const forward_context *f = context;
    const attn_problem *p = &f->in->problem;
    const bool weights = f->outputs->weights != NULL;
    return p->heads > 0 ? attn_multi_head_workspace(p, f->outputs->kept != NULL,
                                                    weights, threads)
                        : attn_forward_workspace(p, weights, threads);
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
    if (py_out(call->given[ARG_OUT], &out) < 0 || py_inputs_read(in, call) < 0 ||
        py_make_outputs(call, in, out, outputs) < 0) {
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

/* dims = the shape of what flows in; how many axes it has. */
static int
shape_of_flow(const py_inputs *in, flow_shape shape, npy_intp dims[PY_MAX_AXES])
{
    const attn_problem *p = &in->problem;
    if (shape == OF_KEPT) {
        dims[0] = py_kept_size(in);
        return 1;
    }
    if (shape == OF_OUTPUT && !py_is_of_scores(in)) {
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
    for (int i = 0; i < FLOWS; i++) {
        PyObject *given = call->given[table[i].arg];
        npy_intp dims[PY_MAX_AXES];
        if (i != GRAD_OUTPUT && !py_is_given(given)) {
            continue;
        }
        int ndim = shape_of_flow(in, table[i].shape, dims);
        flows[i] = py_float32_shaped(given, table[i].name, ndim, dims);
        if (flows[i] == NULL) {
            return -1;
        }
    }
    return 0;
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
    bool scores = py_is_of_scores(in);
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
    if (py_inputs_read(in, call) == 0 && convert_flows(call, in, flows) == 0 &&
        py_make_gradients(call, in, gradients) == 0) {
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
    if (py_inputs_read(&in, call) == 0) {
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
