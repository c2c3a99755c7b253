/*
 * py_attention.h -- what the files of the attention functions share.
 *
 *     py_inputs.c      the inputs of an attention: converted, checked, measured
 *     py_attention.c   one path from Python objects to the core's attention functions
 *     py_functions.c   what the exposed functions share, on top of that path
 *     py_dot.c  py_cosine.c  py_additive.c  py_gaussian.c         the exposed functions
 */
#ifndef PY_ATTENTION_H
#define PY_ATTENTION_H

#include "py_attnext.h"

/* ---- attention, its inputs (py_inputs.c) ----------------------------------------- */

/* A call to any attention, forward, backward or scores: Python objects (borrowed, not
 * yet checked; NULL or None where not given) and options (checked). Start from
 * `attention_args args = {.score = ...}`: every option is off at zero, scale and eps
 * apart. */
typedef struct {
    const attn_score *score;
    PyObject *queries, *keys, *values; /* (..., M, Dq), (..., N, Dk), (..., N, Dv) */
    bool enable_gqa;
    attn_empty_rows empty_rows;

    struct {
        PyObject *W_q, *W_k, *w_v, *b_h; /* additive */
        bool has_scale;                  /* dot: false means 1/sqrt(D) */
        float scale;                     /* dot, cosine: the scale. gaussian: w */
        float eps;                       /* cosine */
    } parameters;
    struct {
        PyObject *valid_lens, *mask, *bias, *causal_offset, *window;
        bool causal;
    } masks;
    struct {
        float p; /* > 0 needs one of these */
        uint64_t seed;
        PyObject *mask;
    } dropout;

    bool want_weights, want_lse; /* forward */
    bool keeps_inputs;           /* the caller keeps them, so lens has to be an array */
    PyObject *out;

    struct {
        PyObject *output, *weights, *lse; /* backward: the gradients that flow in */
    } grad;
    struct {
        PyObject *output, *weights, *lse; /* what the forward returned */
    } saved;
    bool want_grad_bias;
} attention_args;

/* The same call after conversion. All owned (NULL where absent); keep what you like by
 * taking a reference, then attention_inputs_clear(). Any of them can be passed again as
 * the Python object of a later call (lens as valid_lens). Points into itself: not to be
 * copied. */
typedef struct {
    PyArrayObject *queries, *keys, *values;
    PyArrayObject *W_q, *W_k, *w_v, *b_h;
    PyArrayObject *lens;    /* int64 in 0..N, in the shape given; NULL: every key, or,
                               unless the caller keeps them, few_lens */
    PyArrayObject *offsets; /* int64, of the band */
    PyArrayObject *mask, *bias, *dropout_mask;
    attn_problem problem; /* points into the arrays above, and those below */
    int ndim;             /* of queries, keys, values, output and weights */
    int bias_ndim;

    /* Long, read only as far as they were written, and so not set to zero first. */
    npy_intp leading[PY_MAX_AXES];     /* the first ndim - 2 dims of queries */
    npy_intp key_leading[PY_MAX_AXES]; /* ... of keys and values */
    npy_intp bias_dims[PY_MAX_AXES];
    int64_t few_lens[PY_FEW_LENS];
    attn_axis mask_axes[PY_MAX_AXES], bias_axes[PY_MAX_AXES], dropout_axes[PY_MAX_AXES];
} attention_inputs;

/* Makes *in empty: what every use of one starts with. */
void attention_inputs_init(attention_inputs *in);

/* Fills an empty *in. out: the array given as out=, or NULL. No values are read if
 * args->values is NULL. On failure, too, *in is for attention_inputs_clear(). */
int attention_inputs_read(attention_inputs *in, const attention_args *args,
                          PyArrayObject *out);
void attention_inputs_clear(attention_inputs *in);

/* dims = (..., rows, columns) with the leading axes of queries; of keys. */
void attention_shape(const attention_inputs *in, npy_intp rows, npy_intp columns,
                     npy_intp dims[PY_MAX_AXES]);
void attention_key_shape(const attention_inputs *in, npy_intp rows, npy_intp columns,
                         npy_intp dims[PY_MAX_AXES]);

/* ---- attention, run (py_attention.c) --------------------------------------------- */

/* New arrays, owned; NULL where not asked for. */
typedef struct {
    PyArrayObject *output;  /* (..., M, Dv); the out= array if one was given */
    PyArrayObject *weights; /* (..., M, N), before dropout */
    PyArrayObject *lse;     /* (..., M) */
} attention_outputs;

/* New arrays, owned, each in the shape of what it belongs to; NULL where there is no
 * such input, or its gradient was not asked for. */
typedef struct {
    PyArrayObject *queries, *keys, *values;
    PyArrayObject *W_q, *W_k, *w_v, *b_h;
    PyArrayObject *bias;
    bool want_bias; /* it was asked for, whether there is a bias or not */
    float w;        /* gaussian */
} attention_gradients;

/* On failure everything is cleared; on success the caller clears in, outputs,
 * gradients. */
int attention_forward(attnext_state *state, const attention_args *args,
                      attention_inputs *in, attention_outputs *outputs);
int attention_backward(attnext_state *state, const attention_args *args,
                       attention_inputs *in, attention_gradients *gradients);
PyArrayObject *attention_scores(attnext_state *state, const attention_args *args);

void attention_outputs_clear(attention_outputs *outputs);
void attention_gradients_clear(attention_gradients *gradients);

/* ---- exposed attention functions (py_functions.c) -------------------------------- */

/* A call to an exposed forward, from its arguments to its result: the output, or a
 * tuple of the output and the extras asked for. */
PyObject *py_call_forward(PyObject *module, const attn_score *score,
                          const py_signature *signature, PyObject *const *args,
                          Py_ssize_t nargs, PyObject *kwnames);

/* The same for a backward; the caller packs the gradients and clears them. */
int py_call_backward(PyObject *module, const attn_score *score,
                     const py_signature *signature, PyObject *const *args,
                     Py_ssize_t nargs, PyObject *kwnames,
                     attention_gradients *gradients);

/* (dq, dk, dv[, more][, dbias]), and clears the gradients. more: NULL, or another
 * gradient. dbias, if it was asked for, is None without a bias. */
PyObject *py_pack_gradients(attention_gradients *gradients, PyObject *more);

PyObject *py_call_scores(PyObject *module, const attn_score *score,
                         const py_signature *signature, PyObject *const *args,
                         Py_ssize_t nargs, PyObject *kwnames);

/* What every attention function takes after its own options; forward; backward. */
#define PY_COMMON_ARGS                                                             \
    ARG_MASK, ARG_BIAS, ARG_CAUSAL, ARG_CAUSAL_OFFSET, ARG_WINDOW, ARG_ENABLE_GQA, \
        ARG_DROPOUT_P, ARG_SEED, ARG_DROPOUT_MASK, ARG_EMPTY_ROWS
#define PY_FORWARD_ARGS PY_COMMON_ARGS, ARG_RETURN_WEIGHTS, ARG_RETURN_LSE, ARG_OUT
#define PY_BACKWARD_ARGS                                                              \
    PY_COMMON_ARGS, ARG_GRAD_WEIGHTS, ARG_GRAD_LSE, ARG_WEIGHTS, ARG_OUTPUT, ARG_LSE, \
        ARG_RETURN_GRAD_BIAS

#endif
