/*
 * py_layer_memory_keys.c -- what a memory has: keys, values, mask, and what the core made
 * of the keys once (attn_prepare_keys).
 *
 * Each is an array (..., room, width) of which the first N rows count. More rows are
 * written behind these, where no call reads; without room, all move to arrays of twice
 * the room, and the old ones live on for as long as calls and contexts use them. So what
 * somebody has seen of a memory never changes.
 */
#include "py_layer.h"
#include "py_run.h"

#include <string.h>

/* ---- arrays with room ------------------------------------------------------------ */

static npy_intp
entries_of(PyArrayObject *a)
{
    return PyArray_MultiplyList(PyArray_DIMS(a), PyArray_NDIM(a) - 2);
}

static npy_intp
rows_of(PyArrayObject *a)
{
    return PyArray_DIM(a, PyArray_NDIM(a) - 2);
}

static size_t
row_bytes(PyArrayObject *a)
{
    return (size_t)(PyArray_DIM(a, PyArray_NDIM(a) - 1) * PyArray_ITEMSIZE(a));
}

/* A new array as this one, but for the rows of an entry. */
static PyArrayObject *
with_rows(PyArrayObject *a, npy_intp rows)
{
    npy_intp dims[PY_MAX_AXES];
    int ndim = py_note_shape(a, dims);
    dims[ndim - 2] = rows;
    return PyArray_TYPE(a) == NPY_FLOAT32
               ? py_new_float32(ndim, dims)
               : (PyArrayObject *)PyArray_SimpleNew(ndim, dims, PyArray_TYPE(a));
}

/* Rows at .. of every entry of `to` = the first n of `from`, or every byte `fill`. */
static void
put_rows(PyArrayObject *to, npy_intp at, npy_intp n, PyArrayObject *from, int fill)
{
    const size_t row = row_bytes(to), bytes = (size_t)n * row;
    const npy_intp entries = bytes == 0 ? 0 : entries_of(to);
    for (npy_intp e = 0; e < entries; e++) {
        char *to_e = PyArray_BYTES(to) + (size_t)(e * rows_of(to) + at) * row;
        if (from == NULL) {
            memset(to_e, fill, bytes);
        } else {
            memcpy(to_e, PyArray_BYTES(from) + (size_t)(e * rows_of(from)) * row,
                   bytes);
        }
    }
}

PyArrayObject *
layer_memory_grow(PyArrayObject *from, npy_intp rows, npy_intp room, int fill)
{
    PyArrayObject *grown = with_rows(from, room);
    if (grown != NULL) {
        put_rows(grown, 0, rows, from, 0);
        put_rows(grown, rows, room - rows, NULL, fill);
    }
    return grown;
}

/* ---- sharing --------------------------------------------------------------------- */

void
layer_memory_share(py_memory *to, const py_memory *from)
{
    *to = *from;
    Py_XINCREF(to->owner);
    Py_XINCREF(to->keys);
    Py_XINCREF(to->values);
    Py_XINCREF(to->mask);
    Py_XINCREF(to->lens);
    Py_XINCREF(to->prepared);
}

void
layer_memory_release(py_memory *memory)
{
    Py_CLEAR(memory->keys);
    Py_CLEAR(memory->values);
    Py_CLEAR(memory->mask);
    Py_CLEAR(memory->lens);
    Py_CLEAR(memory->prepared);
    Py_CLEAR(memory->owner);
}

/* ---- the mask, as a call takes it ------------------------------------------------ */

PyArrayObject *
py_memory_mask(const py_memory *memory, const attn_problem *p)
{
    const int64_t group = p->heads > 0 ? 1 : p->group;
    PyArrayObject *mask = memory->mask;
    npy_intp dims[PY_MAX_AXES], strides[PY_MAX_AXES];
    int ndim = py_note_shape(mask, dims);
    memcpy(strides, PyArray_STRIDES(mask), (size_t)ndim * sizeof *strides);
    dims[ndim - 2] = 1;
    if (p->heads > 0) {
        strides[ndim] = strides[ndim - 1];
        dims[ndim++ - 1] = 1;
    }
    dims[ndim - 1] = memory->N;
    strides[ndim - 1] = 1;
    PyArrayObject *view = (PyArrayObject *)PyArray_New(
        &PyArray_Type, ndim, dims, NPY_BOOL, strides, PyArray_DATA(mask), 0, 0, NULL);
    if (view == NULL || PyArray_SetBaseObject(view, Py_NewRef(mask)) < 0) {
        Py_XDECREF(view);
        return NULL;
    }
    if (group > 1) {
        PyObject *times = PyLong_FromLongLong(group), *heads = NULL;
        if (times != NULL) {
            heads = PyArray_Repeat(view, times, ndim - 3);
        }
        Py_XDECREF(times);
        Py_SETREF(view, (PyArrayObject *)heads);
    }
    return view;
}

/* ---- what the core makes of the keys, and values --------------------------------- */

bool
py_projects_keys(const py_score *score, int parameter)
{
    const char *shape = score->about->parameters[parameter].shape;
    return score->about->has_heads ? strchr(shape, 'G') != NULL
                                   : attn_projects_keys(score->score, parameter);
}

int64_t
py_key_width(const attn_problem *p)
{
    return p->heads > 0 ? p->H / p->group : attn_key_width(p);
}

int64_t
py_value_width(const attn_problem *p)
{
    return p->heads > 0 ? p->H / p->group : p->Dv;
}

/* B counts heads, too; more than there can be of elements are too many for the core, which
 * then says so. */
static void
add_heads(attn_problem *p, const layer_core *core)
{
    p->heads = core->num_heads;
    p->group = core->num_heads / core->num_kv_heads;
    p->B = p->B > INT64_MAX / p->heads ? INT64_MAX / p->heads * p->heads
                                       : p->B * p->heads;
}

attn_problem
layer_memory_problem(const layer_core *core, const py_memory *now, npy_intp N)
{
    attn_problem p = {
        .B = entries_of(now->keys),
        .N = N,
        .Dk = PyArray_DIM(now->keys, PyArray_NDIM(now->keys) - 1),
        .Dv = PyArray_DIM(now->values, PyArray_NDIM(now->values) - 1),
        .H = core->num_hiddens,
        .group = 1,
        .score = core->score->score,
    };
    for (int i = 0; i < core->score->parameters; i++) {
        p.parameters[i] = py_data(core->parameters[i]);
    }
    if (core->num_heads > 0) {
        add_heads(&p, core);
    }
    return p;
}

/* Bytes for prepared keys; NULL without an exception: there is nothing to prepare. */
static PyArrayObject *
new_prepared(const attn_problem *p, npy_intp room)
{
    size_t size = p->heads > 0 ? attn_multi_head_prepared_size(p, room)
                               : attn_prepared_size(p, room);
    npy_intp bytes = (npy_intp)size;
    if (size > (size_t)PY_SSIZE_T_MAX) {
        PyErr_SetString(PyExc_ValueError,
                        "the arrays are too large: the memory that the projected keys "
                        "need has a size that overflows");
        return NULL;
    }
    return size == 0 ? NULL : (PyArrayObject *)PyArray_SimpleNew(1, &bytes, NPY_UINT8);
}

/* (entries, end - first): ATTN_UNUSED for keys that lengths and mask leave out for good;
 * NULL if there are neither, or no memory: then all are prepared. */
static uint8_t *
unused_keys(const py_memory *now, npy_intp first, npy_intp end)
{
    const npy_intp entries = entries_of(now->keys), room = rows_of(now->keys);
    uint8_t *use = NULL;
    if ((now->mask != NULL || now->lens != NULL) && entries > 0) {
        use = PyMem_RawMalloc((size_t)(entries * (end - first)));
    }
    if (use == NULL) {
        return NULL;
    }
    const int64_t *lens = now->lens == NULL ? NULL : PyArray_DATA(now->lens);
    const bool each = lens != NULL && PyArray_NDIM(now->lens) > 0;
    const npy_intp share = each ? entries / PyArray_DIM(now->lens, 0) : 1;
    const npy_bool *mask = now->mask == NULL ? NULL : PyArray_DATA(now->mask);
    for (npy_intp e = 0, i = 0; e < entries; e++) {
        const int64_t length = lens == NULL ? INT64_MAX : lens[each ? e / share : 0];
        for (npy_intp j = first; j < end; j++, i++) {
            bool used = j < length && (mask == NULL || mask[e * room + j]);
            use[i] = used ? 0 : ATTN_UNUSED;
        }
    }
    return use;
}

typedef struct {
    const attn_problem *p;
    attn_operand keys, values;
    const uint8_t *use;
    void *prepared;
    npy_intp first, end;
} preparation;

static int
call_prepare(const void *context, void *Py_UNUSED(scratch), attn_run *run)
{
    const preparation *c = context;
    return c->p->heads > 0 ? attn_multi_head_prepare(c->prepared, &c->keys, &c->values,
                                                     c->first, c->end, c->p, run)
                           : attn_prepare_keys(c->prepared, &c->keys, c->use, c->first,
                                               c->end, c->p, run);
}

/* Keys first <= j < end of *now. release: the GIL may be given up. */
static int
prepare(const attnext_state *state, const attn_problem *p, const py_memory *now,
        npy_intp first, npy_intp end, bool release)
{
    uint8_t *use = p->heads > 0 ? NULL : unused_keys(now, first, end);
    const preparation context = {
        .p = p,
        .keys = attn_dense(py_data(now->keys), rows_of(now->keys), p->Dk),
        .values = attn_dense(py_data(now->values), rows_of(now->values), p->Dv),
        .use = use,
        .prepared = PyArray_DATA(now->prepared),
        .first = first,
        .end = end,
    };
    const double work = (double)p->B * (double)(end - first) * (double)p->Dk *
                        (double)py_key_width(p);
    int result = (release ? py_run : py_run_alone)(state, work, NULL, call_prepare,
                                                   &context);
    PyMem_RawFree(use);
    return result;
}

/* ---- growing --------------------------------------------------------------------- */

/* to = `from`, of whose rows the first N count, with more room. */
static int
grow(PyArrayObject **to, PyArrayObject *from, npy_intp N, npy_intp room, int fill)
{
    PyArrayObject *grown = layer_memory_grow(from, N, room, fill);
    Py_XSETREF(*to, grown);
    return grown == NULL ? -1 : 0;
}

/* *next, which shares what *now has, gets arrays of its own with so much room. */
static int
move(const layer_core *core, const py_memory *now, npy_intp room, py_memory *next)
{
    const attn_problem p = layer_memory_problem(core, now, room);
    if (grow(&next->keys, now->keys, now->N, room, 0) < 0 ||
        grow(&next->values, now->values, now->N, room, 0) < 0 ||
        (now->mask != NULL && grow(&next->mask, now->mask, now->N, room, true) < 0)) {
        return -1;
    }
    Py_XSETREF(next->prepared, new_prepared(&p, room));
    if (next->prepared != NULL) {
        (p.heads > 0 ? attn_multi_head_prepare_start
                     : attn_prepare_start)(PyArray_DATA(next->prepared), &p, room);
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* A mask that allows every key. */
static PyArrayObject *
new_mask(const py_memory *now)
{
    npy_intp dims[PY_MAX_AXES];
    int ndim = py_note_shape(now->keys, dims);
    dims[ndim - 1] = 1;
    PyArrayObject *mask = (PyArrayObject *)PyArray_SimpleNew(ndim, dims, NPY_BOOL);
    if (mask != NULL) {
        put_rows(mask, 0, rows_of(mask), NULL, true);
    }
    return mask;
}

/* *next = *now with room for rows up to `end`, and for a mask. */
static int
make_room(const layer_core *core, const py_memory *now, npy_intp end, bool masked,
          py_memory *next)
{
    const npy_intp room = rows_of(now->keys);
    const npy_intp twice = room > PY_SSIZE_T_MAX / 2 ? end : 2 * room;
    layer_memory_share(next, now);
    if (room < end && move(core, now, Py_MAX(twice, end), next) < 0) {
        return -1;
    }
    if (masked && next->mask == NULL) {
        next->mask = new_mask(next);
    }
    return masked && next->mask == NULL ? -1 : 0;
}

static bool
is_same(const py_memory *a, const py_memory *b)
{
    return a->N == b->N && a->keys == b->keys && a->mask == b->mask;
}

/* The rows from `at` to `end`, which *next has room for. In arrays that nobody else knows
 * of, to which it has moved, the GIL may be given up; else nothing here runs Python code:
 * what is new is written where nobody reads or writes. */
static int
put_new(const attnext_state *state, const layer_core *core, const py_memory *next,
        const memory_rows *rows, npy_intp at, npy_intp end, bool moved)
{
    const attn_problem p = layer_memory_problem(core, next, end);
    put_rows(next->keys, at, end - at, rows->keys, 0);
    put_rows(next->values, at, end - at, rows->values, 0);
    if (next->mask != NULL) {
        put_rows(next->mask, at, end - at, rows->mask, true);
    }
    return next->prepared == NULL
               ? 0
               : prepare(state, &p, next, moved ? 0 : at, end, moved);
}

/* Making arrays may run Python code, a finaliser, say, and other threads run while moved
 * keys are projected. Where one of them has appended to this memory what was made is of
 * no use, and it starts again behind the rows that came. */
int
layer_memory_extend(const attnext_state *state, const layer_core *core, py_memory *now,
                    const memory_rows *rows)
{
    py_memory was, next;
    bool again;
    do {
        npy_intp end;
        if (__builtin_add_overflow(now->N, rows_of(rows->keys), &end)) {
            PyErr_SetString(PyExc_ValueError, "keys are more than a memory can have");
            return -1;
        }
        if (rows_of(now->keys) >= end && (rows->mask == NULL || now->mask != NULL)) {
            if (layer_memory_check_rows(rows) < 0 ||
                put_new(state, core, now, rows, now->N, end, false) < 0) {
                return -1;
            }
            now->N = end; /* there was room: nothing is made */
            return 0;
        }
        layer_memory_share(&was, now);
        int result = make_room(core, &was, end, rows->mask != NULL, &next);
        const bool moved = next.keys != was.keys;
        if (result == 0 && is_same(now, &was) &&
            (result = layer_memory_check_rows(rows)) == 0) {
            result = put_new(state, core, &next, rows, was.N, end, moved);
        }
        again = result == 0 && !is_same(now, &was);
        if (result == 0 && !again) {
            const py_memory old = *now;
            *now = next;
            now->N = end;
            next = old;
        }
        layer_memory_release(&was);
        layer_memory_release(&next);
        if (result < 0) {
            return -1;
        }
    } while (again);
    return 0;
}
