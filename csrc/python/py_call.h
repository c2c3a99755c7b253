/*
 * py_call.h -- what the files of the attention functions share.
 *
 *     py_options.c     its options that are no arrays: read and checked
 *     py_inputs.c      the inputs of an attention: converted, checked, measured
 *     py_attention.c   one path from Python objects to the core's attention functions
 *     py_functions.c   the exposed functions, four for each score, on top of that path
 */
#ifndef PY_CALL_H
#define PY_CALL_H

#include "py_attnext.h"

/* ---- a call and its inputs (py_inputs.c) ----------------------------------------- */

/* The options that are no arrays, read and checked. Every one is off at zero. */
typedef struct {
    float softcap; /* 0: none */
    bool causal, enable_gqa;
    py_window window;
    float dropout_p; /* > 0 needs the seed or a dropout_mask */
    py_seed seed;
    attn_empty_rows empty_rows;
    bool has_scale;                     /* false: the score's default, or an array */
    float scale;                        /* what it is: attn.h */
    float eps;                          /* 0: the default */
    Py_ssize_t num_heads, num_kv_heads; /* multi-head; 0: not given */
    bool return_weights, return_lse;
    bool return_kept; /* py_outputs.kept, which a backward may be given */
    bool return_grad_bias, return_grad_sink, return_grad_scale;
} py_options;

/* Keys and values that stay (py_layer_memory.c), at one time: the first N rows of arrays
 * that may have room for more. */
typedef struct {
    PyObject *owner;              /* the Memory; NULL where it is this one's own */
    PyArrayObject *keys, *values; /* (..., room, Dk), (..., room, Dv) */
    PyArrayObject *mask;          /* (..., room, 1) of bools; NULL: every key */
    PyArrayObject *lens;          /* int64, () or (B,), however long; NULL: every key */
    PyArrayObject *prepared;      /* bytes, of attn_prepare_keys; NULL: nothing */
    npy_intp N;
} py_memory;

/* A call to any attention, forward or backward, or to the scores alone, likewise, which
 * has no values: plain Python objects (borrowed, not yet checked; NULL or None where not
 * given) and options. */
typedef struct {
    const py_score *score;
    PyObject *given[ARG_COUNT];
    py_options options;
    bool keeps_inputs;       /* the caller keeps them, so lens has to be an array */
    const py_memory *memory; /* in the place of keys and values; NULL: they are given */
} py_call;

/* Arguments before this one may be inputs. */
enum { PY_INPUTS = ARG_EMPTY_ROWS };

/* The same call after conversion. The arrays are owned, by argument, NULL where absent;
 * keep what you like by taking a reference, then py_inputs_clear(). Any of them can be
 * given to a later call. Points into itself: not to be copied. */
typedef struct {
    PyArrayObject *arrays[PY_INPUTS]; /* valid_lens: int64 in 0..N, in the shape given;
                                         NULL: every key, or, unless the caller keeps
                                         the inputs, few_lens */
    bool masked;                      /* there may be arrays behind valid_lens */
    attn_problem problem; /* points into the arrays above, and those below */
    int ndim;             /* of queries, keys, values and output */
    int pair_ndim;        /* of weights: one more if there are heads */
    int bias_ndim, sink_ndim, scale_ndim;
    npy_intp key_heads;  /* the last leading dim of keys and values */
    npy_intp key_rows;   /* of an entry of keys and values: N, or a memory's room */
    int64_t last_offset; /* where a memory's last key is the last query's */

    /* Long, read only as far as they were written, and so not set to zero first. On the
     * stack under whatever Python code reading the inputs runs: not for much more. */
    npy_intp leading[PY_MAX_AXES]; /* the first ndim - 2 dims of queries; then heads */
    npy_intp bias_dims[PY_MAX_AXES], sink_dims[PY_MAX_AXES], scale_dims[PY_MAX_AXES];
    npy_intp sizes[PY_LETTERS]; /* if the score has parameters: of their axes */
    int64_t few_lens[PY_FEW_LENS];
} py_inputs;

/* scale of a score where it is a factor, or NULL. */
static inline PyObject *
py_given_scale(const py_call *call)
{
    PyObject *scale = call->given[ARG_SCALE],
             *of_layer = call->given[ARG_SCALE_OF_LAYER];
    return py_is_given(scale)      ? scale
           : py_is_given(of_layer) ? of_layer
                                   : call->given[ARG_SCALE_OF_ONE];
}

/* Its arrays from here on are NULL. */
static inline int
py_inputs_end(const py_inputs *in)
{
    return in->masked ? PY_INPUTS : ARG_VALID_LENS + 1;
}

/* Makes *in empty: what every use of one starts with. */
void py_inputs_init(py_inputs *in);

/* Fills an empty *in from plain arguments. No values are read if none are given. On
 * failure, too, *in is for py_inputs_clear(). */
int py_inputs_read(py_inputs *in, const py_call *call);

void py_inputs_clear(py_inputs *in);

/* The mask of a memory over all its keys, (..., 1, N), with every head of keys `group`
 * times; if heads are inside, (..., 1, 1, N) for all of them (py_layer_memory_keys.c). */
PyArrayObject *py_memory_mask(const py_memory *memory, const attn_problem *p);

/* Does the parameter make what a memory keeps? Numbers of that of a key, and of what
 * flows to it; likewise of a value, which only multi-head attention projects. */
bool py_projects_keys(const py_score *score, int parameter);
int64_t py_key_width(const attn_problem *p);
int64_t py_value_width(const attn_problem *p);

/* If the call's keys are a Memory to which nothing is appended any more, it goes in the
 * place of keys, values and lengths. ValueError unless it is one of such a call,
 * RuntimeError unless the parameters given are those that projected its keys
 * (py_layer_memory_check.c). */
int py_read_memory(const attnext_state *state, py_call *call);

/* dims = (..., rows, columns) with the leading axes of queries; of keys; of pairs, to
 * which the heads belong. */
void py_query_shape(const py_inputs *in, npy_intp rows, npy_intp columns,
                    npy_intp dims[PY_MAX_AXES]);
void py_key_shape(const py_inputs *in, npy_intp rows, npy_intp columns,
                  npy_intp dims[PY_MAX_AXES]);
void py_pair_shape(const py_inputs *in, npy_intp rows, npy_intp columns,
                   npy_intp dims[PY_MAX_AXES]);

/* Features of the output. */
static inline npy_intp
py_output_width(const py_inputs *in)
{
    return in->problem.heads > 0 ? in->problem.H : in->problem.Dv;
}

/* Without values it is a call of the scores alone, and their gradient that flows in. */
static inline bool
py_is_of_scores(const py_inputs *in)
{
    return in->arrays[ARG_VALUES] == NULL;
}

/* ---- results (py_results.c) ------------------------------------------------------ */

/* New arrays, owned; NULL where not asked for. */
typedef struct {
    PyArrayObject *output;  /* (..., M, Dv); the out= array if one was given */
    PyArrayObject *weights; /* (..., M, N), before dropout */
    PyArrayObject *lse;     /* (..., M) */
    PyArrayObject *kept;    /* one axis, of attn_multi_head_kept numbers */
} py_outputs;

/* New arrays, owned, each in the shape of what it belongs to; NULL where there is no
 * such input, or its gradient was not asked for. */
typedef struct {
    PyArrayObject *queries, *keys, *values, *parameters[ATTN_PARAMETERS];
    PyArrayObject *bias, *sink, *scales;
    float scale; /* of a bandwidth; of a factor that is a number, if it was asked for */
    /* of a memory, in the place of keys and the parameters that project them, and values
     * is that of the projected ones, where they are: attn.h */
    PyArrayObject *projected, *key_use; /* (..., N, width); (..., N, 1) of bytes */
} py_gradients;

/* On failure what was made so far is there, for the caller to clear. out: in the place
 * of a new output, or NULL. */
int py_make_outputs(const py_call *call, const py_inputs *in, PyArrayObject *out,
                    py_outputs *outputs);
int py_make_gradients(const py_call *call, const py_inputs *in, py_gradients *d);

/* How many numbers multi-head attention keeps for its backward. */
npy_intp py_kept_size(const py_inputs *in);

void py_outputs_clear(py_outputs *outputs);
void py_gradients_clear(py_gradients *gradients);

/* Arrays for the gradients of a memory's keys and values that an earlier backward has no
 * more use for, if there are any; written afresh they need no pages of the system's
 * (py_layer_memory_back.c). */
void py_memory_spare(const py_memory *memory, py_gradients *d);

/* What flows to keys of a memory that no query was scored against: nothing. */
void py_clear_unused(const py_gradients *d);

/* ---- run (py_attention.c) -------------------------------------------------------- */

/* On failure everything is cleared; on success the caller clears inputs, outputs,
 * gradients. */
int py_forward(const attnext_state *state, const py_call *call, py_inputs *in,
               py_outputs *outputs);
int py_backward(const attnext_state *state, const py_call *call, py_inputs *in,
                py_gradients *gradients);
PyArrayObject *py_scores(const attnext_state *state, const py_call *call);

/* ---- options (py_options.c) ------------------------------------------------------ */

/* call->options from call->given, by py_options.def; what is not given stays. */
int py_read_options(py_call *call);

/* ---- gradients (py_functions.c) -------------------------------------------------- */

/* What a backward returns: so many gradients, in order, and behind them those that its
 * options ask for, that of the bias; None without one. A tuple, unless it is one. */
enum { PY_GRADIENTS = 3 + ATTN_PARAMETERS + 4 };
PyObject *py_pack_gradients(const py_call *call, const py_gradients *d,
                            PyObject *parts[PY_GRADIENTS], int count);

#endif
