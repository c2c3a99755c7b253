/*
 * py_attention.c -- the one path from a call that was read to attn_forward, attn_backward,
 * attn_scores, attn_scores_backward and those of multi-head attention.
 */
#include "py_call.h"
#include "py_run.h"

/* ---- a call, as the core has it -------------------------------------------------- */

static bool
is_empty(PyArrayObject *a)
{
    return a == NULL || PyArray_SIZE(a) == 0;
}

static attn_inputs
inputs_of(const py_call *call)
{
    const attn_problem *p = &call->problem;
    return (attn_inputs){
        .queries = py_operand(call, ARG_QUERIES, p->M, p->Dq),
        .keys = py_operand(call, ARG_KEYS, call->key_rows, p->Dk),
        .values = py_operand(call, ARG_VALUES, call->key_rows, p->Dv),
    };
}

static attn_grad_outputs
flows_of(const py_call *call)
{
    return (attn_grad_outputs){.output = py_data(call->arrays[ARG_GRAD_OUTPUT]),
                               .weights = py_data(call->arrays[ARG_GRAD_WEIGHTS]),
                               .lse = py_data(call->arrays[ARG_GRAD_LSE])};
}

static attn_gradients
gradients_of(const py_call *call)
{
    const py_made *d = &call->made;
    attn_gradients to = {
        .queries = py_data(d->queries),
        .keys = py_data(d->keys),
        .values = py_data(d->values),
        .scale = call->scale_or_scales,
        .projected = py_data(d->projected),
        .key_use = d->key_use == NULL ? NULL : PyArray_DATA(d->key_use),
        .bias = is_empty(d->bias) ? NULL : py_data(d->bias),
        .sink = is_empty(d->sink) ? NULL : py_data(d->sink),
    };
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        to.parameters[i] = py_data(d->parameters[i]);
    }
    return to;
}

/* ---- forward --------------------------------------------------------------------- */

static double
work_of(const py_call *call)
{
    const attn_problem *p = &call->problem;
    const bool backward = py_is_backward(call->form);
    return py_has_heads(call) ? attn_multi_head_work(p, backward)
           : backward         ? attn_backward_work(p)
                              : attn_forward_work(p);
}

static int
call_forward(const void *context, void *scratch, attn_run *run)
{
    const py_call *call = context;
    const attn_problem *p = &call->problem;
    const attn_inputs in = inputs_of(call);
    const py_made *to = &call->made;
    float *output = py_data(to->output), *weights = py_data(to->weights);
    float *lse = py_data(to->lse);
    return py_is_of_scores(call) ? attn_scores(output, &in, p, scratch, run)
           : py_has_heads(call)
               ? attn_multi_head_forward(output, weights, lse, py_data(to->kept), &in,
                                         p, scratch, run)
               : attn_forward(output, weights, lse, &in, p, scratch, run);
}

/* ---- backward -------------------------------------------------------------------- */

static int
call_backward(const void *context, void *scratch, attn_run *run)
{
    const py_call *call = context;
    const attn_problem *p = &call->problem;
    const attn_inputs in = inputs_of(call);
    const attn_gradients d = gradients_of(call);
    const attn_grad_outputs from = flows_of(call);
    const attn_saved saved = {.output = py_data(call->arrays[ARG_OUTPUT]),
                              .weights = py_data(call->arrays[ARG_WEIGHTS]),
                              .lse = py_data(call->arrays[ARG_LSE])};
    return py_is_of_scores(call)
               ? attn_scores_backward(&d, from.output, &in, p, scratch, run)
           : py_has_heads(call)
               ? attn_multi_head_backward(&d, &from, &saved,
                                          py_data(call->arrays[ARG_KEPT]), &in, p,
                                          scratch, run)
               : attn_backward(&d, &from, &saved, &in, p, scratch, run);
}

/* ---- either ---------------------------------------------------------------------- */

int
py_attend(const attnext_state *state, py_call *call)
{
    if (py_is_backward(call->form)) {
        return py_read_inputs(call) < 0 || py_make_gradients(call) < 0
                   ? -1
                   : py_run(state, work_of(call), call_backward, call);
    }
    const py_made *to = &call->made;
    if (py_read_inputs(call) < 0 || py_make_outputs(call) < 0) {
        return -1;
    }
    if (is_empty(to->output) && is_empty(to->weights) && is_empty(to->lse)) {
        return 0; /* nothing to write, however large the other sizes */
    }
    return py_run(state, work_of(call), call_forward, call);
}
