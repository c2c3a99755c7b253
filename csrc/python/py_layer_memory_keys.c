/*
 * py_layer_memory_keys.c -- how keys come into a memory: what is read of them, and the cache of
 * the core's in which they stay (../core/kv_cache.h), for which memory is found here.
 */
#include "py_layer.h"
#include "py_run.h"

#include <string.h>

/* What is read of more keys: a mask or none, of N keys. */
enum { MEMORY_MASK = MEMORY_SIDES, MEMORY_ROWS };
typedef struct {
    PyArrayObject *arrays[MEMORY_ROWS];
    npy_intp N;
} memory_rows;

/* ---- shapes ---------------------------------------------------------------------- */

int
py_memory_shape(PyObject *object, npy_intp rows, npy_intp width,
                npy_intp dims[PY_MAX_AXES])
{
    const memory_object *memory = (memory_object *)object;
    memcpy(dims, memory->leading, (size_t)(memory->ndim - 2) * sizeof *dims);
    dims[memory->ndim - 2] = rows;
    dims[memory->ndim - 1] = width;
    return memory->ndim;
}

/* ---- sharing --------------------------------------------------------------------- */

void
layer_memory_share(py_memory *to, const py_memory *from)
{
    *to = *from;
    Py_XINCREF(to->owner);
    if (to->kv != NULL) {
        attn_kv_hold(to->kv);
    }
}

void
layer_memory_hold(memory_object *memory, py_memory *held)
{
    Py_BEGIN_CRITICAL_SECTION(memory);
    layer_memory_share(held, &memory->now);
    Py_END_CRITICAL_SECTION();
}

void
py_memory_clear(py_memory *memory)
{
    if (memory->kv != NULL) {
        attn_kv_release(memory->kv, py_give_scratch);
        memory->kv = NULL;
    }
    Py_CLEAR(memory->owner);
}

/* ---- reading keys and values ----------------------------------------------------- */

/* Keys or values, (..., rows->N, width), of the width that they have in the memory; the first
 * of all say which axes there are. */
static int
read_side(memory_object *memory, py_arg arg, PyObject *given, memory_rows *rows)
{
    const int which = arg == ARG_KEYS ? MEMORY_KEYS : MEMORY_VALUES;
    const char *name = py_argument_rows[arg].name;
    npy_intp dims[PY_MAX_AXES];
    PyArrayObject *a = rows->arrays[which] = py_float32(given, name);
    if (a == NULL || layer_check_features(&memory->core, arg, (PyObject *)a) < 0) {
        return -1;
    }
    if (memory->ndim == 0 && PyArray_NDIM(a) < 2) {
        return py_shape_error(a, name, "two axes or more: (..., N, D)");
    }
    if (memory->ndim == 0) {
        memory->ndim = py_note_shape(a, memory->leading);
    }
    const int ndim = py_memory_shape((PyObject *)memory, rows->N, memory->widths[which],
                                     dims);
    if (py_check_shape(a, name, ndim, dims) < 0) {
        return -1;
    }
    memory->widths[which] = layer_width_of(a);
    rows->N = layer_rows_of(a);
    return 0;
}

/* A mask that broadcasts to (..., 1, n), in this shape: a copy. */
static PyArrayObject *
read_mask(const memory_object *memory, PyObject *object, npy_intp n)
{
    npy_intp dims[PY_MAX_AXES];
    const int ndim = py_memory_shape((PyObject *)memory, 1, n, dims);
    attn_view view = {0};
    PyArrayObject *mask = py_pairs(object, ARG_MASK, false, false, ndim, dims, &view);
    PyArrayObject *copy = NULL;
    py_view_clear(&view);
    if (mask != NULL) {
        copy = (PyArrayObject *)PyArray_SimpleNew(ndim, dims, NPY_BOOL);
    }
    if (copy != NULL && PyArray_CopyInto(copy, mask) < 0) {
        Py_CLEAR(copy);
    }
    Py_XDECREF(mask);
    return copy;
}

/* *rows = what a call was given; lengths come with the first alone. While something is
 * converted others may append, and the arrays change: what is put is looked at again. */
static int
read_rows(memory_object *memory, PyObject *const *given, memory_rows *rows)
{
    PyObject *mask = given[ARG_MASK], *lens = given[ARG_VALID_LENS];
    if (read_side(memory, ARG_KEYS, given[ARG_KEYS], rows) < 0 ||
        read_side(memory, ARG_VALUES, given[ARG_VALUES], rows) < 0) {
        return -1;
    }
    if (py_is_given(mask) &&
        (rows->arrays[MEMORY_MASK] = read_mask(memory, mask, rows->N)) == NULL) {
        return -1;
    }
    /* Of all queries alike: one, or one for each entry of the first axis. */
    attn_valid_lens valid;
    return !py_is_given(lens)
               ? 0
               : py_valid_lens(lens, "valid_lens", memory->ndim > 2, memory->leading,
                               PY_SSIZE_T_MAX, &valid, &memory->lens, NULL);
}

/* ---- growing --------------------------------------------------------------------- */

/* What the first cache is made after. Of lengths there is one for each entry of the first axis,
 * or one for all. */
static attn_kv
first_of(const memory_object *memory)
{
    const layer_core *core = &memory->core;
    const int64_t entries = PyArray_MultiplyList(memory->leading, memory->ndim - 2);
    const int64_t heads = core->num_heads;
    attn_kv kv = {.maker = py_keys_of(core->score), .entries = entries};
    kv.p = (attn_problem){.Dk = memory->widths[MEMORY_KEYS],
                          .Dv = memory->widths[MEMORY_VALUES],
                          .H = core->num_hiddens,
                          .heads = heads,
                          .group = heads > 0 ? heads / core->num_kv_heads : 1,
                          .score = core->score->score};
    if (memory->lens != NULL && entries > 0) {
        kv.p.masks.valid = (attn_valid_lens){
            PyArray_DATA(memory->lens), entries / PyArray_SIZE(memory->lens), 1, 0};
    }
    for (int i = 0; i < core->score->parameters; i++) {
        kv.p.parameters[i] = py_data(core->parameters[i]);
    }
    return kv;
}

/* Are keys and values, which may be anybody's, still of the shape that was seen? Code that ran
 * meanwhile may have changed it in place. */
static int
check_rows(const memory_object *memory, const memory_rows *rows)
{
    for (int i = MEMORY_KEYS; i <= MEMORY_VALUES; i++) {
        npy_intp dims[PY_MAX_AXES];
        const int ndim = py_memory_shape((PyObject *)memory, rows->N, memory->widths[i],
                                         dims);
        if (!py_shape_fits(rows->arrays[i], ndim, dims)) {
            return py_wrong("sentence", "(s)", "other_rows");
        }
    }
    return 0;
}

static int
call_prepare(const void *kv, void *Py_UNUSED(scratch), attn_run *run)
{
    return attn_kv_prepare((attn_kv *)kv, run);
}

/* The rows behind others. In a cache that nobody else knows of, to which these have moved, the
 * GIL may be given up; else nothing here runs Python code, or can fail: what is new is written
 * where nobody reads or writes. */
static int
put(const attnext_state *state, attn_kv *kv, const memory_rows *rows, bool is_new)
{
    PyArrayObject *const *a = rows->arrays, *mask = a[MEMORY_MASK];
    const attn_kv_rows from = {py_data(a[MEMORY_KEYS]), py_data(a[MEMORY_VALUES]),
                               mask == NULL ? NULL : PyArray_DATA(mask), rows->N};
    attn_kv_append(kv, rows->N, &from);
    if (kv->prepared == NULL) {
        return 0;
    }
    py_quiet_begin();
    return py_run(state, attn_kv_work(kv), is_new, call_prepare, kv);
}

/* All keys move to another cache, with the rows. Others run while they are projected: where one
 * of them has appended to this memory, what was made is of no use, and the result 1. */
static int
move(const attnext_state *state, memory_object *memory, const memory_rows *rows)
{
    py_memory *now = &memory->now, was, next = {.N = now->N + rows->N};
    const attn_kv none = now->kv == NULL ? first_of(memory) : (attn_kv){0};
    size_t bytes;
    layer_memory_share(&was, now);
    next.kv = attn_kv_moved(was.kv == NULL ? &none : was.kv, rows->N,
                            rows->arrays[MEMORY_MASK] != NULL, py_take_scratch, &bytes);
    const int result = next.kv == NULL ? py_refuse(bytes, "the projected keys")
                                       : put(state, next.kv, rows, true);
    const bool same = now->N == was.N && now->kv == was.kv;
    if (result == 0 && same) {
        const py_memory old = *now;
        *now = next;
        next = old;
    }
    py_memory_clear(&was);
    py_memory_clear(&next);
    return result == 0 ? !same : -1;
}

/* All or nothing, whatever others append meanwhile. */
static int
extend(const attnext_state *state, memory_object *memory, const memory_rows *rows)
{
    py_memory *now = &memory->now;
    int result = 1;
    while (result > 0) {
        if (check_rows(memory, rows) < 0) {
            return -1;
        }
        if (rows->N > PY_SSIZE_T_MAX - now->N) {
            return py_wrong("sentence", "(s)", "too_many_rows");
        }
        if (now->kv == NULL ||
            !attn_kv_takes(now->kv, rows->N, rows->arrays[MEMORY_MASK] != NULL)) {
            result = move(state, memory, rows);
        } else if ((result = put(state, now->kv, rows, false)) == 0) {
            now->N += rows->N;
        }
    }
    return result;
}

int
layer_memory_add_keys(const attnext_state *state, memory_object *memory,
                      PyObject *const *given)
{
    const bool first = memory->ndim == 0;
    memory_rows rows = {.N = PY_N};
    const int result = read_rows(memory, given, &rows) < 0 ||
                               (!first && layer_memory_check_own(memory) < 0)
                           ? -1
                           : extend(state, memory, &rows);
    for (int i = 0; i < MEMORY_ROWS; i++) {
        Py_XDECREF(rows.arrays[i]);
    }
    return result;
}
