/*
 * py_call.h -- a call of an attention, one struct from the arguments to the results, which
 * functions and layers fill and hand to the same path:
 *
 *     py_begin(&call, score, form);                # py_call.c
 *     py_parse(..., call.given)                    # py_signature.c
 *     py_read_call(state, &call, ...)              # plain, the options read: py_call.c
 *     py_attend(state, &call)                      # the core: py_call.c
 *         read the inputs                          # py_inputs.c
 *         make what it returns                     # py_results.c
 *     py_pack_outputs(&call) or py_pack_gradients(state, &call)
 *     py_end(&call);
 *
 * A layer's call is a function's whose parameters and some of its options the object has
 * (py_layer_call.c); the functions are in py_functions.c.
 */
#ifndef PY_CALL_H
#define PY_CALL_H

#include "py_attnext.h"

#include "../core/kv_cache.h"

/* ---- the call ------------------------------------------------------------------------ */

typedef struct {
    bool given;
    uint64_t value;
} py_seed;

typedef struct {
    bool given;
    float value;
} py_scale;

/* The options that are no arrays. Every one is off at zero. */
typedef struct {
    float softcap; /* 0: none */
    bool causal, enable_gqa;
    attn_band window; /* without offsets */
    float dropout_p;  /* > 0 needs the seed or a dropout_mask */
    py_seed seed;
    attn_empty_rows empty_rows;
    py_scale scale; /* attn.h; not given: the score's default, or an array */
    float eps;      /* 0: the default */
    Py_ssize_t num_heads, num_kv_heads; /* multi-head; 0: not given */
    bool return_weights, return_lse;
    bool return_kept; /* py_made.kept, which a backward may be given */
    bool return_grad_bias, return_grad_sink, return_grad_scale;
} py_options;

/* The first N keys and values of a Memory (py_layer_memory.c), with references of its own; or
 * nothing, all 0. */
typedef struct {
    PyObject *owner; /* the Memory; NULL where it is this one's own */
    attn_kv *kv;
    npy_intp N;
} py_memory;

/* Where the core reads queries, keys or values; points into itself. */
typedef struct {
    attn_operand operand;
    attn_sharing
        sharing; /* of batch elements that np.broadcast_to repeats, if there are any */
    int64_t *tables; /* of these; owned, or NULL */
} py_operand;

/* New arrays, owned; NULL where not asked for, or where there is no such input. */
enum { PY_OUTPUTS = 4, PY_MADE = 9 + ATTN_PARAMETERS };
typedef union {
    struct { /* of a forward, in the order in which they are returned */
        PyArrayObject *output;  /* (..., M, Dv); the out= array if one was given */
        PyArrayObject *weights; /* (..., M, N), before dropout */
        PyArrayObject *lse;     /* (..., M) */
        PyArrayObject *kept;    /* one axis, of attn_multi_head_kept numbers */
    };
    struct { /* of a backward, each in the shape of what it belongs to */
        PyArrayObject *queries, *keys, *values, *parameters[ATTN_PARAMETERS];
        PyArrayObject *bias, *sink, *scales;
        PyObject *scale; /* of one number, a float32 of NumPy's; scales is NULL then */
        /* of a memory, in the place of keys and the parameters that project them, and
         * values is that of the projected ones, where they are: attn.h */
        PyArrayObject *projected, *key_use; /* (..., N, width); (..., N, 1) of bytes */
    };
    PyArrayObject *all[PY_MADE]; /* of a forward the first PY_OUTPUTS alone */
} py_made;

/* A call to any attention, forward or backward, or to the scores alone, likewise, which
 * has no values. Points into itself: not to be copied. */
typedef struct {
    PyObject *given[ARG_COUNT]; /* borrowed; NULL or None where not given */
    const py_score *score;
    py_form form;

    PyObject *plain; /* keeps those of given that were made plain; or NULL */
    py_options options;
    py_memory memory; /* in the place of keys and values; nothing: they are given */

    /* The same arguments after conversion, owned, NULL where absent; keep what you like by
     * taking a reference. Any of them can be given to a later call. valid_lens: int64 in
     * 0..N, in the shape given; NULL: every key, or, but for a layer, few_lens. */
    PyArrayObject *arrays[ARG_COUNT];
    int end;              /* those from here on are NULL */
    attn_problem problem; /* points into the arrays above, and those below */
    py_operand queries, keys,
        values;          /* placed once the results are there; or nothing */
    int ndim;            /* of queries, keys, values and output */
    int pair_ndim;       /* of weights: one more if there are heads */
    npy_intp key_heads;  /* the last leading dim of keys and values */
    int64_t last_offset; /* where a memory's last key is the last query's */
    npy_intp beside; /* so many heads of results lie inside rows, (B, M, heads, D), as
                           * those of queries do: for attnext.torch; or 0 */

    py_made made; /* the scores are an output */

    /* Long, read only as far as they were written, and so not set to zero first. */
    npy_intp leading[PY_MAX_AXES]; /* the first ndim - 2 dims of queries; then heads */
    int64_t few_lens[PY_FEW_LENS];
} py_call;

/* Without values it is a call of the scores alone, and their gradient that flows in. */
static inline bool
py_is_of_scores(const py_call *call)
{
    return call->arrays[ARG_VALUES] == NULL && call->memory.kv == NULL;
}

/* ---- arguments and options (py_call.c) ----------------------------------------------- */

/* Makes *call empty. */
void py_begin(py_call *call, const py_score *score, py_form form);
void py_end(py_call *call);

/* Behind py_parse: what is given as what is plain, and, if keywords are, as options; what
 * is not given stays. */
int py_read_call(const attnext_state *state, py_call *call, PyObject *kwnames);

/* A call that was read. */
int py_attend(const attnext_state *state, py_call *call);

/* dims = (..., rows, columns) with the leading axes of queries; of keys; of pairs, to
 * which the heads belong; how many axes that is. */
typedef enum { OF_QUERIES, OF_KEYS, OF_PAIRS } py_shape_of;
int py_shape(const py_call *call, py_shape_of of, npy_intp rows, npy_intp columns,
             npy_intp dims[PY_MAX_AXES]);

/* Is it multi-head attention, which makes heads itself? */
static inline bool
py_has_heads(const py_call *call)
{
    return call->score->about->has_heads;
}

/* ---- inputs (py_inputs.c) ------------------------------------------------------------ */

/* arrays and problem from plain arguments. No values are read if none are given. */
int py_read_inputs(py_call *call);
void py_clear_inputs(py_call *call);

/* Fill call->queries, keys and values. */
int py_place_inputs(py_call *call);

/* ---- rows (py_rows.c) ---------------------------------------------------------------- */

/* Queries, keys or values, plain, as float32 in the shape given: the array itself if the core can
 * read it where it is stored, or else a copy of its distinct data. */
PyArrayObject *py_read_rows(PyObject *object, const char *name);

/* True if both arrays, of equal leading axes, repeat batch elements, and the same ones. */
bool py_repeat_alike(PyArrayObject *a, PyArrayObject *b);

/* Fill *to for such an array of two axes at least. is_read: false if the call has no queries,
 * so that no table is made, however many batch elements there are. alike: one that repeats the
 * same batch elements, and is placed; or NULL. */
int py_place_rows(py_operand *to, PyArrayObject *a, bool is_read,
                  const py_operand *alike);

/* arrays[which] = a, which is owned; -1 if that is NULL. */
static inline int
py_keep(py_call *call, py_arg which, PyArrayObject *a)
{
    call->arrays[which] = a;
    call->end = Py_MAX(call->end, (int)which + 1);
    return a == NULL ? -1 : 0;
}

/* ---- memories (py_layer_memory_*.c) -------------------------------------------------- */

/* What is made of a memory's keys and values. */
static inline const attn_key_maker *
py_keys_of(const py_score *score)
{
    return score->about->has_heads ? &attn_keys_of_heads : &attn_keys_of_score;
}

/* If the call's keys are a Memory to which nothing is appended any more, it goes in the
 * place of keys, values and lengths. ValueError unless it is one of such a call,
 * RuntimeError unless the parameters given are those that projected its keys
 * (py_layer_memory_check.c). */
int py_read_memory(const attnext_state *state, py_call *call);

/* dims = (..., rows, width) of a Memory, in how many axes; and gives up references
 * (py_layer_memory_keys.c). */
int py_memory_shape(PyObject *memory, npy_intp rows, npy_intp width,
                    npy_intp dims[PY_MAX_AXES]);
void py_memory_clear(py_memory *memory);

/* Arrays for the gradients of a memory's keys and values that an earlier backward has no
 * more use for, if there are any: to make three takes a tenth of a small one's time
 * (py_layer_memory_back.c). */
void py_memory_spare(const py_memory *memory, py_made *d);

/* What flows to keys of a memory that no query was scored against: nothing. */
void py_clear_unused(const py_made *d);

/* ---- results (py_results.c) ---------------------------------------------------------- */

/* New arrays, for inputs that were read; and what flows into a backward, converted. */
int py_make_outputs(py_call *call);
int py_make_gradients(py_call *call);

/* What a call returns: the output, or a tuple of it and what was asked for: weights, lse,
 * kept; a tuple of gradients. */
PyObject *py_pack_outputs(const py_call *call);
PyObject *py_pack_gradients(const attnext_state *state, const py_call *call);

void py_made_clear(py_made *made, int count);

#endif
