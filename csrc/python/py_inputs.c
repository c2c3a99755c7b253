/*
 * py_inputs.c -- the inputs of an attention: converted to float32, checked against each
 * other, and measured for the core.
 */
#include "py_call.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

void
py_inputs_init(py_inputs *in)
{
    memset(in, 0, offsetof(py_inputs, leading));
}

/* ---- shapes ---------------------------------------------------------------------- */

void
py_query_shape(const py_inputs *in, npy_intp rows, npy_intp columns,
               npy_intp dims[PY_MAX_AXES])
{
    memcpy(dims, in->leading, (size_t)(in->ndim - 2) * sizeof *dims);
    dims[in->ndim - 2] = rows;
    dims[in->ndim - 1] = columns;
}

void
py_key_shape(const py_inputs *in, npy_intp rows, npy_intp columns,
             npy_intp dims[PY_MAX_AXES])
{
    py_query_shape(in, rows, columns, dims);
    if (in->ndim > 2) {
        dims[in->ndim - 3] = in->key_heads;
    }
}

void
py_pair_shape(const py_inputs *in, npy_intp rows, npy_intp columns,
              npy_intp dims[PY_MAX_AXES])
{
    memcpy(dims, in->leading, (size_t)(in->pair_ndim - 2) * sizeof *dims);
    dims[in->pair_ndim - 2] = rows;
    dims[in->pair_ndim - 1] = columns;
}

/* ---- keeping what was read ------------------------------------------------------- */

/* The input is a, owned; -1 if that is NULL. */
static int
keep(py_inputs *in, py_arg which, PyArrayObject *a)
{
    in->arrays[which] = a;
    return a == NULL ? -1 : 0;
}

/* ---- queries, keys, values ------------------------------------------------------- */

/* queries (..., M, Dq), two axes at least. Its sizes are noted here, once: reading the
 * other arguments may run Python code, which may reshape an array in place. */
static int
convert_queries(const py_call *call, py_inputs *in)
{
    attn_problem *p = &in->problem;
    if (keep(in, ARG_QUERIES, py_float32(call->given[ARG_QUERIES], "queries")) < 0) {
        return -1;
    }
    in->ndim = in->pair_ndim = PyArray_NDIM(in->arrays[ARG_QUERIES]);
    const npy_intp *dims = PyArray_DIMS(in->arrays[ARG_QUERIES]);
    if (in->ndim < 2) {
        return py_shape_error(in->arrays[ARG_QUERIES], "queries",
                              "two axes or more: (..., M, D)");
    }
    if (call->options.enable_gqa && in->ndim < 3) {
        return py_shape_error(in->arrays[ARG_QUERIES], "queries",
                              "three axes or more with enable_gqa: (..., heads, M, D)");
    }
    memcpy(in->leading, dims, (size_t)(in->ndim - 2) * sizeof *dims);
    in->key_heads = in->ndim > 2 ? dims[in->ndim - 3] : 1;
    p->B = PyArray_MultiplyList(dims, in->ndim - 2);
    p->M = dims[in->ndim - 2];
    p->Dq = dims[in->ndim - 1];
    return 0;
}

/* queries do not fit the keys that a memory has. hint: what would help. */
static int
memory_shape_error(const py_call *call, const py_inputs *in, const char *hint)
{
    char keys[PY_SHAPE_TEXT], wanted[PY_SHAPE_TEXT], expected[2 * PY_SHAPE_TEXT + 120];
    npy_intp dims[PY_MAX_AXES];
    int ndim = py_note_shape(call->memory->keys, dims);
    dims[ndim - 2] = call->memory->N;
    py_shape_text(keys, ndim, dims);
    dims[ndim - 2] = PY_M;
    dims[ndim - 1] = call->score->own_key_size ? in->problem.Dq : dims[ndim - 1];
    if (call->options.enable_gqa && ndim > 2) {
        dims[ndim - 3] = PY_HEADS;
    }
    PyOS_snprintf(expected, sizeof expected, "%s for a memory with keys of shape %s%s",
                  py_shape_text(wanted, ndim, dims), keys, hint);
    return py_shape_error(in->arrays[ARG_QUERIES], "queries", expected);
}

/* How many query heads share one key head: the heads of keys are their last leading
 * axis, and divide those of queries. */
static int
read_group(const py_call *call, py_inputs *in)
{
    npy_intp heads = in->leading[in->ndim - 3];
    npy_intp key_heads = PyArray_DIM(in->arrays[ARG_KEYS], in->ndim - 3);
    in->key_heads = key_heads;
    if (key_heads == heads) {
        return 0;
    }
    if (key_heads == 0 || heads % key_heads != 0) {
        char expected[80];
        if (call->memory != NULL) {
            return memory_shape_error(call, in, "");
        }
        PyOS_snprintf(expected, sizeof expected,
                      "a number of heads (axis -3) that divides the %lld of queries",
                      (long long)heads);
        return py_shape_error(in->arrays[ARG_KEYS], "keys", expected);
    }
    in->problem.group = heads > 0 ? heads / key_heads : 1;
    return 0;
}

/* keys are not of shape dims: would they be with enable_gqa? */
static const char *
heads_hint(const py_inputs *in, npy_intp dims[PY_MAX_AXES])
{
    int heads_axis = in->ndim - 3;
    if (in->ndim < 4 || PyArray_NDIM(in->arrays[ARG_KEYS]) != in->ndim) {
        return "";
    }
    npy_intp heads = dims[heads_axis];
    npy_intp key_heads = dims[heads_axis] = PyArray_DIM(in->arrays[ARG_KEYS],
                                                        heads_axis);
    bool fits = py_shape_fits(in->arrays[ARG_KEYS], in->ndim, dims) && key_heads > 0 &&
                heads % key_heads == 0;
    return fits ? "; with enable_gqa=True the heads (axis -3) may be fewer" : "";
}

/* keys are not of shape dims: says so, and that enable_gqa would take them, if so. */
PY_COLD static int
keys_shape_error(const py_inputs *in, npy_intp dims[PY_MAX_AXES])
{
    char shape[PY_SHAPE_TEXT], expected[PY_SHAPE_TEXT + 80];
    py_shape_text(shape, in->ndim, dims);
    PyOS_snprintf(expected, sizeof expected, "%s%s", shape, heads_hint(in, dims));
    return py_shape_error(in->arrays[ARG_KEYS], "keys", expected);
}

/* keys (..., N, Dk); the leading axes are the queries', but the heads may be fewer with
 * enable_gqa, and Dk = Dq unless a parameter says what
 * becomes of other features. */
static int
convert_keys(const py_call *call, py_inputs *in)
{
    const py_memory *memory = call->memory;
    attn_problem *p = &in->problem;
    npy_intp dims[PY_MAX_AXES];

    if (call->options.enable_gqa) {
        in->key_heads = PY_HEADS;
    }
    py_key_shape(in, PY_N, call->score->own_key_size ? PY_DK : p->Dq, dims);
    PyArrayObject *keys = memory != NULL ? (PyArrayObject *)Py_NewRef(memory->keys)
                                         : py_float32(call->given[ARG_KEYS], "keys");
    if (keep(in, ARG_KEYS, keys) < 0) {
        return -1;
    }
    if (!py_shape_fits(in->arrays[ARG_KEYS], in->ndim, dims)) {
        return memory != NULL ? memory_shape_error(call, in, heads_hint(in, dims))
                              : keys_shape_error(in, dims);
    }
    in->key_rows = PyArray_DIM(in->arrays[ARG_KEYS], in->ndim - 2);
    p->N = memory != NULL ? memory->N : in->key_rows;
    p->Dk = PyArray_DIM(in->arrays[ARG_KEYS], in->ndim - 1);
    p->prepared = memory == NULL || memory->prepared == NULL
                      ? NULL
                      : PyArray_DATA(memory->prepared);
    p->group = 1;
    return call->options.enable_gqa ? read_group(call, in) : 0;
}

/* values (..., N, Dv), with the leading axes of keys; those of a memory are. */
static int
convert_values(const py_call *call, py_inputs *in)
{
    npy_intp dims[PY_MAX_AXES];
    py_key_shape(in, in->problem.N, PY_DV, dims);
    PyArrayObject *values = call->memory != NULL
                                ? (PyArrayObject *)Py_NewRef(call->memory->values)
                                : py_float32_shaped(call->given[ARG_VALUES], "values",
                                                    in->ndim, dims);
    if (keep(in, ARG_VALUES, values) < 0) {
        return -1;
    }
    in->problem.Dv = PyArray_DIM(in->arrays[ARG_VALUES], in->ndim - 1);
    return 0;
}

/* ---- parameters ------------------------------------------------------------------ */

static int
heads_error(const char *name, Py_ssize_t heads, const char *of, Py_ssize_t number)
{
    PyErr_Format(PyExc_ValueError, "%s is %zd, expected a divisor of %s, %zd", name,
                 heads, of, number);
    return -1;
}

/* Heads, once W_q has said how many hidden units there are: they are one more axis of
 * what belongs to pairs. */
static int
take_heads(const py_call *call, py_inputs *in)
{
    attn_problem *p = &in->problem;
    const npy_intp H = in->sizes['H' - 'A'], heads = call->options.num_heads;
    const npy_intp given = call->options.num_kv_heads, kv = given > 0 ? given : heads;
    if (H % heads != 0) {
        return heads_error("num_heads", heads, "the rows of W_q", H);
    }
    if (heads % kv != 0) {
        return heads_error("num_kv_heads", kv, "num_heads", heads);
    }
    if (__builtin_mul_overflow(p->B, heads, &p->B)) {
        PyErr_SetString(PyExc_ValueError, "queries has a size that overflows");
        return -1;
    }
    p->heads = heads;
    p->group = heads / kv;
    in->sizes['G' - 'A'] = H / heads * kv;
    in->leading[in->ndim - 2] = heads;
    in->pair_ndim = in->ndim + 1;
    return 0;
}

static int
convert_parameters(const py_call *call, py_inputs *in)
{
    attn_problem *p = &in->problem;
    memset(in->sizes, 0, sizeof in->sizes);
    in->sizes['H' - 'A'] = PY_H;
    in->sizes['Q' - 'A'] = p->Dq;
    in->sizes['K' - 'A'] = p->Dk;
    in->sizes['V' - 'A'] = call->score->about->has_heads ? p->Dv : PY_DV;
    for (int i = 0; i < call->score->parameters; i++) {
        const attn_parameter *parameter = &call->score->about->parameters[i];
        PyObject *given = call->given[ARG_PARAMETER_0 + i];
        if (parameter->optional && !py_is_given(given)) {
            continue;
        }
        PyArrayObject *a = py_parameter(given, parameter->name, parameter->shape,
                                        in->sizes);
        if (keep(in, ARG_PARAMETER_0 + i, a) < 0) {
            return -1;
        }
        p->parameters[i] = py_data(a);
        if (i == 0 && call->score->about->has_heads && take_heads(call, in) < 0) {
            return -1;
        }
    }
    p->H = Py_MAX(in->sizes['H' - 'A'], 0);
    return 0;
}

/* ---- masks ----------------------------------------------------------------------- */

/* mask, bias or dropout_mask, if given. */
static int
convert_pairs(const py_call *call, py_arg which, const npy_intp *dims, attn_view *view,
              py_inputs *in)
{
    if (!py_is_given(call->given[which])) {
        return 0;
    }
    in->masked = true;
    return keep(in, which,
                py_pairs(call->given[which], which, in->problem.heads > 0,
                         in->pair_ndim, dims, view));
}

/* The mask of the memory, and that of the call if there is one. */
static int
add_mask_of_memory(const py_call *call, const npy_intp *dims, py_inputs *in)
{
    PyArrayObject *mask = py_memory_mask(call->memory, &in->problem);
    PyArrayObject *given = in->arrays[ARG_MASK];
    if (mask != NULL && given != NULL) {
        Py_SETREF(mask, py_both(mask, given));
    }
    if (mask == NULL) {
        return -1;
    }
    in->masked = true;
    py_view_clear(&in->problem.masks.mask);
    int result = keep(in, ARG_MASK,
                      py_pairs((PyObject *)mask, ARG_MASK, false, in->pair_ndim, dims,
                               &in->problem.masks.mask));
    Py_XDECREF(given);
    Py_DECREF(mask);
    return result;
}

/* Lengths and bands belong to queries, which heads share. */
static void
share_among_heads(attn_problem *p)
{
    if (p->heads > 0) {
        int64_t *lens = &p->masks.valid.heads, *offsets = &p->masks.band.heads;
        *lens *= p->heads;
        *offsets = *offsets > INT64_MAX / p->heads ? INT64_MAX : *offsets * p->heads;
    }
}

/* Everything that is about pairs (..., M, N). The shape of the bias is noted for its
 * gradient's sake. */
static int
convert_masks(const py_call *call, py_inputs *in)
{
    attn_problem *p = &in->problem;
    const py_options *o = &call->options;
    PyObject *offset = call->given[ARG_CAUSAL_OFFSET];
    npy_intp dims[PY_MAX_AXES];
    py_query_shape(in, p->M, p->N, dims);

    if (py_valid_lens(call->given[ARG_VALID_LENS], in->ndim - 1, dims, p->N,
                      &p->masks.valid, &in->arrays[ARG_VALID_LENS],
                      call->keeps_inputs ? NULL : in->few_lens) < 0) {
        return -1;
    }
    bool band = o->causal || o->window.given || offset != NULL;
    in->masked = offset != NULL;
    if (band && py_band(&o->window, o->causal, offset, in->ndim - 1, dims,
                        &p->masks.band, &in->arrays[ARG_CAUSAL_OFFSET]) < 0) {
        return -1;
    }
    if (call->memory != NULL && offset == NULL) {
        in->last_offset = p->N - p->M;
        p->masks.band.offset = &in->last_offset;
        p->masks.band.heads = INT64_MAX;
    }
    share_among_heads(p);
    py_pair_shape(in, p->M, p->N, dims);
    if (convert_pairs(call, ARG_MASK, dims, &p->masks.mask, in) < 0 ||
        convert_pairs(call, ARG_BIAS, dims, &p->masks.bias, in) < 0) {
        return -1;
    }
    if (call->memory != NULL && call->memory->mask != NULL &&
        add_mask_of_memory(call, dims, in) < 0) {
        return -1;
    }
    if (in->arrays[ARG_BIAS] != NULL) { /* now: what follows may reshape the array */
        in->bias_ndim = py_note_shape(in->arrays[ARG_BIAS], in->bias_dims);
    }
    return convert_pairs(call, ARG_DROPOUT_MASK, dims, &p->dropout.keep, in);
}

/* ---- what rows share ------------------------------------------------------------- */

/* sink, if given. Its shape is noted as that of the bias. */
static int
convert_sink(const py_call *call, py_inputs *in)
{
    npy_intp dims[PY_MAX_AXES];
    PyObject *given = call->given[ARG_SINK];
    if (!py_is_given(given)) {
        return 0;
    }
    in->masked = true;
    py_pair_shape(in, in->problem.M, 0, dims);
    PyArrayObject *a = py_shared(given, "sink", true, in->pair_ndim - 2,
                                 in->pair_ndim - 1, dims, &in->problem.sink);
    if (keep(in, ARG_SINK, a) < 0) {
        return -1;
    }
    in->sink_ndim = py_note_shape(a, in->sink_dims);
    return 0;
}

/* scale, if it is an array. */
static int
convert_scale(const py_call *call, py_inputs *in)
{
    PyObject *given = py_given_scale(call);
    if (given == NULL || call->options.has_scale) {
        return 0;
    }
    in->masked = true;
    PyArrayObject *a = py_shared(given, "scale", false, in->pair_ndim - 2,
                                 in->pair_ndim - 2, in->leading, &in->problem.scales);
    if (keep(in, ARG_SCALE, a) < 0) {
        return -1;
    }
    in->scale_ndim = py_note_shape(a, in->scale_dims);
    return 0;
}

/* ---- all of them ----------------------------------------------------------------- */

/* torch's of cosine_similarity. */
static const float DEFAULT_EPS = 1e-8f;

/* What the one number of the score is where none was given. */
static float
default_scale(attn_scale_kind kind, int64_t D)
{
    return kind == ATTN_SCALE_ROOT && D > 0 ? (float)(1.0 / sqrt((double)D)) : 1.0f;
}

int
py_inputs_read(py_inputs *in, const py_call *call)
{
    attn_problem *p = &in->problem;
    const py_options *o = &call->options;
    const py_score *score = call->score;

    p->score = score->score;
    p->softcap = o->softcap;
    p->empty_rows = o->empty_rows;
    p->dropout.p = o->dropout_p;
    p->dropout.seed = o->seed.value;
    if (convert_queries(call, in) < 0 || convert_keys(call, in) < 0 ||
        ((call->given[ARG_VALUES] != NULL || call->memory != NULL) &&
         convert_values(call, in) < 0) ||
        (score->parameters > 0 && convert_parameters(call, in) < 0)) {
        return -1;
    }
    int64_t D = p->heads > 0 ? p->H / p->heads : p->Dq;
    p->scale = o->has_scale ? o->scale : default_scale(score->about->scale, D);
    p->eps = o->eps > 0.0f ? o->eps : DEFAULT_EPS;
    return convert_masks(call, in) < 0 || convert_sink(call, in) < 0
               ? -1
               : convert_scale(call, in);
}

void
py_inputs_clear(py_inputs *in)
{
    for (int i = ARG_QUERIES; i < py_inputs_end(in); i++) {
        Py_XDECREF(in->arrays[i]);
    }
    if (in->masked) {
        py_view_clear(&in->problem.masks.mask);
        py_view_clear(&in->problem.masks.bias);
        py_view_clear(&in->problem.dropout.keep);
        py_view_clear(&in->problem.sink);
        py_view_clear(&in->problem.scales);
    }
}
