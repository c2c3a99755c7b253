/*
 * py_layer_memory_keys.c -- what a memory has: keys, values, mask, and what the core made
 * of the keys once (attn_key_maker).
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

PyArrayObject *
layer_memory_array(int ndim, const npy_intp *like, npy_intp rows, npy_intp width,
                   int type)
{
    npy_intp dims[PY_MAX_AXES];
    memcpy(dims, like, (size_t)ndim * sizeof *dims);
    dims[ndim - 2] = rows;
    dims[ndim - 1] = width;
    return type == NPY_FLOAT32 ? py_new_float32(ndim, dims)
                               : (PyArrayObject *)PyArray_SimpleNew(ndim, dims, type);
}

static npy_intp
entries_of(PyArrayObject *a)
{
    return PyArray_MultiplyList(PyArray_DIMS(a), PyArray_NDIM(a) - 2);
}

/* Rows at .. of every entry of `to` = the first n of (entries, rows, width) `from`; of
 * NULL, which a mask may be, all true. */
static void
put_rows(PyArrayObject *to, npy_intp at, npy_intp n, PyArrayObject *from, npy_intp rows)
{
    const npy_intp width = PyArray_DIM(to, PyArray_NDIM(to) - 1);
    const size_t row = (size_t)(width * PyArray_ITEMSIZE(to)), bytes = (size_t)n * row;
    const npy_intp entries = bytes == 0 ? 0 : entries_of(to);
    for (npy_intp e = 0; e < entries; e++) {
        char *to_e = PyArray_BYTES(to) + (size_t)(e * layer_rows_of(to) + at) * row;
        if (from == NULL) {
            memset(to_e, true, bytes);
        } else {
            memcpy(to_e, PyArray_BYTES(from) + (size_t)(e * rows) * row, bytes);
        }
    }
}

/* ---- sharing --------------------------------------------------------------------- */

void
layer_memory_share(py_memory *to, const py_memory *from)
{
    *to = *from;
    Py_XINCREF(to->owner);
    for (int i = 0; i < MEMORY_ARRAYS; i++) {
        Py_XINCREF(to->arrays[i]);
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
layer_memory_release(py_memory *memory)
{
    for (int i = 0; i < MEMORY_ARRAYS; i++) {
        Py_CLEAR(memory->arrays[i]);
    }
    Py_CLEAR(memory->owner);
}

/* ---- what the core makes of the keys, and values --------------------------------- */

static attn_operand
operand(PyArrayObject *a)
{
    return attn_dense(py_data(a), layer_rows_of(a),
                      PyArray_DIM(a, PyArray_NDIM(a) - 1));
}

/* Of lengths there is one for each entry of the first axis, or one for all. */
static attn_masks
masks_of(const py_memory *now, npy_intp entries)
{
    PyArrayObject *lens = now->arrays[MEMORY_LENS], *mask = now->arrays[MEMORY_MASK];
    attn_masks masks = {0};
    if (lens != NULL && entries > 0) {
        masks.valid.lens = PyArray_DATA(lens);
        masks.valid.heads = entries / PyArray_SIZE(lens);
        masks.valid.stride_b = 1;
    }
    if (mask != NULL) {
        masks.keys = (attn_key_mask){PyArray_DATA(mask), 1, layer_rows_of(mask)};
    }
    return masks;
}

/* B counts heads, too; more than there can be of elements are too many for the core, which
 * then says so. */
void
layer_memory_look(memory_view *view, const layer_core *core, const py_memory *now,
                  npy_intp N)
{
    PyArrayObject *keys = now->arrays[MEMORY_KEYS],
                  *values = now->arrays[MEMORY_VALUES];
    const int64_t heads = core->num_heads;
    view->maker = py_keys_of(core->score);
    view->in = (attn_inputs){.keys = operand(keys), .values = operand(values)};
    view->p = (attn_problem){
        .B = entries_of(keys),
        .N = N,
        .Dk = PyArray_DIM(keys, PyArray_NDIM(keys) - 1),
        .Dv = PyArray_DIM(values, PyArray_NDIM(values) - 1),
        .H = core->num_hiddens,
        .heads = heads,
        .group = heads > 0 ? heads / core->num_kv_heads : 1,
        .score = core->score->score,
        .masks = masks_of(now, entries_of(keys)),
    };
    if (heads > 0) {
        view->p.B = heads * Py_MIN(view->p.B, INT64_MAX / heads);
    }
    for (int i = 0; i < core->score->parameters; i++) {
        view->p.parameters[i] = py_data(core->parameters[i]);
    }
}

/* Room for prepared keys, where there is anything to prepare. */
static int
make_prepared(const layer_core *core, py_memory *next, npy_intp room)
{
    memory_view of;
    layer_memory_look(&of, core, next, room);
    const size_t size = of.maker->size(&of.p, room);
    npy_intp bytes = (npy_intp)size;
    if (size > (size_t)PY_SSIZE_T_MAX) {
        return py_wrong("arrays_too_large", "(s)", "that the projected keys need");
    }
    if (size == 0) {
        return 0;
    }
    PyObject *made = PyArray_SimpleNew(1, &bytes, NPY_UINT8);
    next->arrays[MEMORY_PREPARED] = (PyArrayObject *)made;
    if (made == NULL) {
        return -1;
    }
    of.maker->start(PyArray_DATA((PyArrayObject *)made), &of.p, room);
    return 0;
}

typedef struct {
    memory_view of;
    void *prepared;
    npy_intp first, end;
} preparation;

static int
call_prepare(const void *context, void *Py_UNUSED(scratch), attn_run *run)
{
    const preparation *c = context;
    return c->of.maker->make(c->prepared, &c->of.in, c->first, c->end, &c->of.p, run);
}

/* Keys first <= j < end of *now. release: the GIL may be given up. */
static int
prepare(const attnext_state *state, const layer_core *core, const py_memory *now,
        npy_intp first, npy_intp end, bool release)
{
    preparation c;
    layer_memory_look(&c.of, core, now, end);
    c.prepared = PyArray_DATA(now->arrays[MEMORY_PREPARED]);
    c.first = first;
    c.end = end;
    const double work = (double)c.of.p.B * (double)(end - first) * (double)c.of.p.Dk *
                        (double)c.of.maker->key_width(&c.of.p);
    py_quiet_begin();
    return (release ? py_run : py_run_alone)(state, work, call_prepare, &c);
}

/* ---- growing --------------------------------------------------------------------- */

/* How many rows it has room for; -1: it has no arrays yet. */
static npy_intp
room_of(const py_memory *memory)
{
    PyArrayObject *keys = memory->arrays[MEMORY_KEYS];
    return keys == NULL ? -1 : layer_rows_of(keys);
}

/* *next = *now in arrays of its own, with room for rows up to `end`, and for a mask if
 * the rows have one. On failure, too, it is for layer_memory_release. */
static int
make_room(const layer_core *core, const py_memory *now, const memory_rows *rows,
          npy_intp end, py_memory *next)
{
    const npy_intp had = room_of(now), N = now->N;
    const npy_intp twice = had > PY_SSIZE_T_MAX / 2 ? end : 2 * had;
    const npy_intp room = had >= end ? had : Py_MAX(twice, end);
    const int lens = MEMORY_LENS;
    *next = (py_memory){.N = N};
    next->arrays[lens] = (PyArrayObject *)Py_XNewRef(had < 0 ? rows->arrays[lens]
                                                             : now->arrays[lens]);
    for (int i = 0; i < MEMORY_ROWS; i++) {
        PyArrayObject *from = now->arrays[i];
        if (from != NULL || rows->arrays[i] != NULL) {
            next->arrays[i] = layer_memory_array(
                rows->ndim, rows->dims, room, rows->widths[i],
                i == MEMORY_MASK ? NPY_BOOL : NPY_FLOAT32);
            if (next->arrays[i] == NULL) {
                return -1;
            }
            put_rows(next->arrays[i], 0, N, from, had);
        }
    }
    return make_prepared(core, next, room);
}

/* Are keys and values, which may be anybody's, still of the shape that was seen? */
static bool
are_what_they_were(const memory_rows *rows)
{
    npy_intp dims[PY_MAX_AXES];
    memcpy(dims, rows->dims, (size_t)rows->ndim * sizeof *dims);
    for (int i = MEMORY_KEYS; i <= MEMORY_VALUES; i++) {
        dims[rows->ndim - 1] = rows->widths[i];
        if (!py_shape_fits(rows->arrays[i], rows->ndim, dims)) {
            PyErr_SetString(PyExc_ValueError,
                            "keys or values changed shape in the call");
            return false; /* in place, by code that ran where something was made */
        }
    }
    return true;
}

/* Rows from `at` to `end`, which *to has room for. In arrays that nobody else knows of, to
 * which it has moved, the GIL may be given up; else nothing here runs Python code: what is
 * new is written where nobody reads or writes. */
static int
put(const attnext_state *state, const layer_core *core, const py_memory *to,
    const memory_rows *rows, npy_intp at, npy_intp end, bool moved)
{
    if (!are_what_they_were(rows)) {
        return -1;
    }
    for (int i = 0; i < MEMORY_ROWS; i++) {
        if (to->arrays[i] != NULL) {
            put_rows(to->arrays[i], at, end - at, rows->arrays[i], end - at);
        }
    }
    return to->arrays[MEMORY_PREPARED] == NULL
               ? 0
               : prepare(state, core, to, moved ? 0 : at, end, moved);
}

static bool
is_same(const py_memory *a, const py_memory *b)
{
    return a->N == b->N && a->arrays[MEMORY_KEYS] == b->arrays[MEMORY_KEYS];
}

/* Making arrays may run Python code, a finaliser, say, and other threads run while moved
 * keys are projected. Where one of them has appended to this memory what was made is of
 * no use, and it starts again behind the rows that came. */
int
layer_memory_extend(const attnext_state *state, const layer_core *core, py_memory *now,
                    const memory_rows *rows)
{
    const bool masked = rows->arrays[MEMORY_MASK] != NULL;
    int result = 0;
    for (bool done = false; result == 0 && !done;) {
        const npy_intp at = now->N;
        npy_intp end;
        py_memory was, next;
        if (__builtin_add_overflow(at, rows->dims[rows->ndim - 2], &end)) {
            PyErr_SetString(PyExc_ValueError, "keys are more than a memory can have");
            return -1;
        }
        if (room_of(now) >= end && (!masked || now->arrays[MEMORY_MASK] != NULL)) {
            result = put(state, core, now, rows, at, end, false);
            now->N = result == 0 ? end : at;
            return result;
        }
        layer_memory_share(&was, now);
        result = make_room(core, &was, rows, end, &next);
        if (result == 0 && is_same(now, &was)) {
            result = put(state, core, &next, rows, at, end, true);
        }
        done = result == 0 && is_same(now, &was);
        if (done) {
            const py_memory old = *now;
            *now = next;
            now->N = end;
            next = old;
        }
        layer_memory_release(&was);
        layer_memory_release(&next);
    }
    return result;
}
