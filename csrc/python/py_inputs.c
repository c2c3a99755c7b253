/*
 * py_inputs.c -- the inputs of an attention: converted to float32, checked against each
 * other, and measured for the core.
 */
#include "py_call.h" /* Python.h is the first header of all */

#include <stddef.h>
#include <string.h>

/* ---- queries, keys, values ------------------------------------------------------- */

/* Is it a call of attnext.torch's own function, but of multi-head attention? */
static bool
is_for_torch(const py_call *call)
{
    return (call->form == OF_KEEPING || call->form == OF_KEEPING_BACKWARD) &&
           !py_has_heads(call);
}

/* Queries, keys or values, which go into the call's arrays. */
static int
read_rows(py_call *call, py_arg which)
{
    return py_keep(call, which,
                   py_read_rows(call->given[which], py_argument_rows[which].name));
}

/* How many heads lie inside the rows of queries: results are made to lie so, too. */
static npy_intp
heads_beside(const py_call *call)
{
    PyArrayObject *queries = call->arrays[ARG_QUERIES];
    return PyArray_NDIM(queries) == 4 && !PyArray_IS_C_CONTIGUOUS(queries) &&
                   PyArray_DIM(queries, 1) > 1 &&
                   PyArray_STRIDE(queries, 1) < PyArray_STRIDE(queries, 2)
               ? PyArray_DIM(queries, 1)
               : 0;
}

/* queries (..., M, Dq), two axes at least. */
static int
convert_queries(py_call *call)
{
    attn_problem *p = &call->problem;
    if (read_rows(call, ARG_QUERIES) < 0) {
        return -1;
    }
    call->ndim = call->pair_ndim = PyArray_NDIM(call->arrays[ARG_QUERIES]);
    const npy_intp *dims = PyArray_DIMS(call->arrays[ARG_QUERIES]);
    if (call->ndim < 2 + call->options.enable_gqa) {
        return py_shape_error(
            call->arrays[ARG_QUERIES], "queries",
            call->ndim < 2 ? "two axes or more: (..., M, D)"
                           : "three axes or more with enable_gqa: (..., heads, M, D)");
    }
    memcpy(call->leading, dims, (size_t)(call->ndim - 2) * sizeof *dims);
    call->key_heads = call->ndim > 2 ? dims[call->ndim - 3] : 1;
    p->B = PyArray_MultiplyList(dims, call->ndim - 2);
    p->M = dims[call->ndim - 2];
    p->Dq = dims[call->ndim - 1];
    return 0;
}

/* keys are not what queries ask for. */
PY_COLD static int
keys_error(const py_call *call)
{
    PyObject *memory = call->memory.owner;
    const long long N = memory != NULL ? call->memory.N : -1;
    return py_wrong("keys", "(OOiiL)",
                    memory != NULL ? memory : (PyObject *)call->arrays[ARG_KEYS],
                    call->arrays[ARG_QUERIES], call->score->own_key_size,
                    call->options.enable_gqa, N);
}

/* How many query heads share one key head: the heads of keys are their last leading
 * axis, and divide those of queries. */
static int
read_group(py_call *call, npy_intp key_heads)
{
    npy_intp heads = call->leading[call->ndim - 3];
    call->key_heads = key_heads;
    if (key_heads == heads) {
        return 0;
    }
    if (key_heads == 0 || heads % key_heads != 0) {
        return keys_error(call);
    }
    call->problem.group = heads > 0 ? heads / key_heads : 1;
    return 0;
}

/* keys (..., N, Dk); the leading axes are the queries', but the heads may be fewer with
 * enable_gqa, and Dk = Dq unless a parameter says what becomes of other features. */
static int
convert_keys(py_call *call)
{
    const py_memory *memory = &call->memory;
    attn_problem *p = &call->problem;
    npy_intp dims[PY_MAX_AXES], came[PY_MAX_AXES];

    if (call->options.enable_gqa) {
        call->key_heads = PY_HEADS;
    }
    py_shape(call, OF_KEYS, PY_N, call->score->own_key_size ? PY_DK : p->Dq, dims);
    if (memory->kv == NULL && read_rows(call, ARG_KEYS) < 0) {
        return -1;
    }
    const int ndim = memory->kv == NULL ? py_note_shape(call->arrays[ARG_KEYS], came)
                                        : py_memory_shape(memory->owner, memory->N,
                                                          memory->kv->p.Dk, came);
    if (!py_dims_fit(ndim, came, call->ndim, dims)) {
        return keys_error(call);
    }
    p->N = came[ndim - 2];
    p->Dk = came[ndim - 1];
    p->group = 1;
    if (memory->kv != NULL) {
        p->prepared = memory->kv->prepared;
        p->masks.keys = memory->kv->p.masks.keys;
    }
    return call->options.enable_gqa ? read_group(call, came[ndim - 3]) : 0;
}

/* values (..., N, Dv), with the leading axes of keys; those of a memory are. */
static int
convert_values(py_call *call)
{
    npy_intp dims[PY_MAX_AXES];
    if (call->memory.kv != NULL) {
        call->problem.Dv = call->memory.kv->p.Dv;
        return 0;
    }
    py_shape(call, OF_KEYS, call->problem.N, PY_DV, dims);
    if (read_rows(call, ARG_VALUES) < 0 ||
        py_check_shape(call->arrays[ARG_VALUES], "values", call->ndim, dims) < 0) {
        return -1;
    }
    call->problem.Dv = PyArray_DIM(call->arrays[ARG_VALUES], call->ndim - 1);
    return 0;
}

/* ---- parameters ------------------------------------------------------------------ */

/* Heads, once W_q has said how many hidden units there are: they are one more axis of
 * what belongs to pairs. */
static int
take_heads(py_call *call, npy_intp sizes[PY_LETTERS])
{
    attn_problem *p = &call->problem;
    const npy_intp H = sizes['H' - 'A'], heads = call->options.num_heads;
    const npy_intp given = call->options.num_kv_heads, kv = given > 0 ? given : heads;
    if (H % heads != 0) {
        return py_wrong("divisor", "(snsn)", "num_heads", heads,
                        "the number of rows of W_q", H);
    }
    if (heads % kv != 0) {
        return py_wrong("divisor", "(snsn)", "num_kv_heads", kv, "num_heads", heads);
    }
    if (__builtin_mul_overflow(p->B, heads, &p->B)) {
        return py_wrong("overflow", "(s)", "queries");
    }
    p->heads = heads;
    p->group = heads / kv;
    sizes['G' - 'A'] = H / heads * kv;
    call->leading[call->ndim - 2] = heads;
    call->pair_ndim = call->ndim + 1;
    return 0;
}

static int
convert_parameters(py_call *call)
{
    attn_problem *p = &call->problem;
    npy_intp sizes[PY_LETTERS] = {0};
    sizes['H' - 'A'] = PY_H;
    sizes['Q' - 'A'] = p->Dq;
    sizes['K' - 'A'] = p->Dk;
    sizes['V' - 'A'] = call->score->about->has_heads ? p->Dv : PY_DV;
    for (int i = 0; i < call->score->parameters; i++) {
        const attn_parameter *parameter = &call->score->about->parameters[i];
        PyObject *given = call->given[ARG_PARAMETER_0 + i];
        if (parameter->optional && !py_is_given(given)) {
            continue;
        }
        PyArrayObject *a = py_parameter(given, parameter->name, parameter->shape,
                                        sizes);
        if (py_keep(call, ARG_PARAMETER_0 + i, a) < 0) {
            return -1;
        }
        p->parameters[i] = py_data(a);
        if (i == 0 && call->score->about->has_heads && take_heads(call, sizes) < 0) {
            return -1;
        }
    }
    p->H = Py_MAX(sizes['H' - 'A'], 0);
    return 0;
}

/* ---- pairs ----------------------------------------------------------------------- */

/* What is given for pairs, or for rows or entries of them alike, and where the core's view
 * of it is. */
static const struct {
    py_arg which;
    size_t view;
} of_pairs[] = {
    {ARG_MASK, offsetof(py_call, problem.masks.mask)},
    {ARG_BIAS, offsetof(py_call, problem.masks.bias)},
    {ARG_DROPOUT_MASK, offsetof(py_call, problem.dropout.keep)},
    {ARG_SINK, offsetof(py_call, problem.sink)},
    {ARG_SCALE, offsetof(py_call, problem.scales)},
};
enum { PAIR_INPUTS = Py_ARRAY_LENGTH(of_pairs) };

static attn_view *
view_of(py_call *call, int i)
{
    return (attn_view *)((char *)call + of_pairs[i].view);
}

static int
convert_pairs(py_call *call, const npy_intp *dims)
{
    if (call->given[ARG_SCALE_OF_ONE] != NULL) { /* the same, of another default */
        call->given[ARG_SCALE] = call->given[ARG_SCALE_OF_ONE];
    }
    for (int i = 0; i < PAIR_INPUTS; i++) {
        const py_arg which = of_pairs[i].which;
        PyObject *given = call->given[which];
        if (given != NULL && PyArray_Check(given) && /* a number is an option */
            py_keep(call, which,
                    py_pairs(given, which, call->problem.heads > 0,
                             call->options.return_grad_bias, call->pair_ndim, dims,
                             view_of(call, i))) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Everything that is about pairs (..., M, N). */
static int
convert_masks(py_call *call)
{
    attn_problem *p = &call->problem;
    const py_options *o = &call->options;
    PyObject *offset = call->given[ARG_CAUSAL_OFFSET];
    npy_intp dims[PY_MAX_AXES];
    py_shape(call, OF_QUERIES, p->M, p->N, dims);

    if (py_valid_lens(call->given[ARG_VALID_LENS], "valid_lens", call->ndim - 1, dims,
                      p->N, &p->masks.valid, &call->arrays[ARG_VALID_LENS],
                      py_is_of_layer(call->form) ? NULL : call->few_lens) < 0) {
        return -1;
    }
    p->masks.band = o->window;
    if (o->causal) {
        p->masks.band.has_right = true;
        p->masks.band.right = 0;
    }
    if (offset != NULL &&
        py_keep(call, ARG_CAUSAL_OFFSET,
                py_offsets(offset, call->ndim - 1, dims, &p->masks.band)) < 0) {
        return -1;
    }
    if (call->memory.kv != NULL && offset == NULL) {
        call->last_offset = p->N - p->M;
        p->masks.band.offset = &call->last_offset;
        p->masks.band.heads = INT64_MAX;
    }
    attn_share_among_heads(p);
    py_shape(call, OF_PAIRS, p->M, p->N, dims);
    return convert_pairs(call, dims);
}

/* ---- all of them ----------------------------------------------------------------- */

int
py_read_inputs(py_call *call)
{
    attn_problem *p = &call->problem;
    const py_options *o = &call->options;
    const py_score *score = call->score;

    p->score = score->score;
    p->softcap = o->softcap;
    p->empty_rows = o->empty_rows;
    p->dropout.p = o->dropout_p;
    p->dropout.seed = o->seed.value;
    if (convert_queries(call) < 0 || convert_keys(call) < 0 ||
        ((call->given[ARG_VALUES] != NULL || call->memory.kv != NULL) &&
         convert_values(call) < 0) ||
        (score->parameters > 0 && convert_parameters(call) < 0)) {
        return -1;
    }
    p->scale = o->scale.given ? o->scale.value : attn_default_scale(p);
    p->eps = o->eps > 0.0f ? o->eps : 1e-8f; /* torch's of cosine_similarity */
    if (convert_masks(call) < 0) {
        return -1;
    }
    call->beside = is_for_torch(call) && call->memory.kv == NULL ? heads_beside(call)
                                                                 : 0;
    p->heads = Py_MAX(p->heads, call->beside);
    return 0;
}

int
py_place_inputs(py_call *call)
{
    const bool is_read = call->problem.B > 0 && call->problem.M > 0;
    PyArrayObject *keys = call->arrays[ARG_KEYS], *values = call->arrays[ARG_VALUES];
    call->values.operand = attn_dense(NULL, call->problem.N, 0); /* of scores alone */
    if (py_place_rows(&call->queries, call->arrays[ARG_QUERIES], is_read, NULL) < 0 ||
        (keys != NULL && py_place_rows(&call->keys, keys, is_read, NULL) < 0)) {
        return -1;
    }
    return values == NULL
               ? 0
               : py_place_rows(&call->values, values, is_read,
                               py_repeat_alike(values, keys) ? &call->keys : NULL);
}

void
py_clear_inputs(py_call *call)
{
    PyMem_Free(call->queries.tables);
    PyMem_Free(call->keys.tables);
    PyMem_Free(call->values.tables);
    for (int i = 0; i < call->end; i++) {
        Py_XDECREF(call->arrays[i]);
    }
    for (int i = 0; call->end > ARG_VALID_LENS + 1 && i < PAIR_INPUTS; i++) {
        py_view_clear(view_of(call, i));
    }
}
