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

#include "../core/kv_cache.h"

/* ---- arrays with room ------------------------------------------------------------ */

int
layer_memory_shape(const memory_object *memory, npy_intp rows, npy_intp width,
                   npy_intp dims[PY_MAX_AXES])
{
    memcpy(dims, memory->leading, (size_t)(memory->ndim - 2) * sizeof *dims);
    dims[memory->ndim - 2] = rows;
    dims[memory->ndim - 1] = width;
    return memory->ndim;
}

PyArrayObject *
layer_memory_array(const memory_object *memory, npy_intp rows, npy_intp width, int type)
{
    npy_intp dims[PY_MAX_AXES];
    const int ndim = layer_memory_shape(memory, rows, width, dims);
    return type == NPY_FLOAT32 ? py_new_float32(ndim, dims)
                               : (PyArrayObject *)PyArray_SimpleNew(ndim, dims, type);
}

/* How many rows it has room for; -1: it has no arrays yet. */
static npy_intp
room_of(const py_memory *memory)
{
    PyArrayObject *keys = memory->arrays[MEMORY_KEYS];
    return keys == NULL ? -1 : layer_rows_of(keys);
}

/* Rows at .. of *to = the first n of *from, all true where that has no mask. */
static void
put_rows(const memory_object *memory, const py_memory *to, npy_intp at,
         const py_memory *from, npy_intp n)
{
    for (int i = 0; i < MEMORY_ROWS; i++) {
        PyArrayObject *a = to->arrays[i], *b = from->arrays[i];
        if (a != NULL) {
            const npy_intp bytes = memory->widths[i] * PyArray_ITEMSIZE(a);
            const attn_rows_kept kept = {PyArray_DATA(a), room_of(to)};
            const attn_rows_kept more = {b == NULL ? NULL : PyArray_DATA(b),
                                         room_of(from)};
            attn_put_rows(kept, at, n, more, memory->entries, (size_t)bytes);
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
    return attn_dense(py_data(a), layer_rows_of(a), layer_width_of(a));
}

/* Of lengths there is one for each entry of the first axis, or one for all. */
static void
take_masks(attn_masks *masks, const memory_object *memory, const py_memory *now)
{
    PyArrayObject *lens = now->arrays[MEMORY_LENS], *mask = now->arrays[MEMORY_MASK];
    if (lens != NULL && memory->entries > 0) {
        masks->valid.lens = PyArray_DATA(lens);
        masks->valid.heads = memory->entries / PyArray_SIZE(lens);
        masks->valid.stride_b = 1;
    }
    if (mask != NULL) {
        masks->keys = (attn_key_mask){PyArray_DATA(mask), 1, layer_rows_of(mask)};
    }
}

/* B counts heads, too; more than there can be of elements are too many for the core, which
 * then says so. */
void
layer_memory_look(memory_view *view, const memory_object *memory, const py_memory *now,
                  npy_intp N)
{
    const layer_core *core = &memory->core;
    const int64_t entries = memory->entries, heads = core->num_heads;
    view->maker = py_keys_of(core->score);
    view->in = (attn_inputs){.keys = operand(now->arrays[MEMORY_KEYS]),
                             .values = operand(now->arrays[MEMORY_VALUES])};
    view->p = (attn_problem){
        .B = heads > 0 ? heads * Py_MIN(entries, INT64_MAX / heads) : entries,
        .N = N,
        .Dk = memory->widths[MEMORY_KEYS],
        .Dv = memory->widths[MEMORY_VALUES],
        .H = core->num_hiddens,
        .heads = heads,
        .group = heads > 0 ? heads / core->num_kv_heads : 1,
        .score = core->score->score,
    };
    take_masks(&view->p.masks, memory, now);
    for (int i = 0; i < core->score->parameters; i++) {
        view->p.parameters[i] = py_data(core->parameters[i]);
    }
}

/* Room for prepared keys, where there is anything to prepare. */
static int
make_prepared(const memory_object *memory, py_memory *next, npy_intp room)
{
    memory_view of;
    layer_memory_look(&of, memory, next, room);
    const size_t size = of.maker->size(&of.p, room);
    npy_intp bytes = (npy_intp)size;
    if (size > (size_t)PY_SSIZE_T_MAX) {
        return py_wrong("arrays_too_large", "(s)", "that the projected keys need");
    }
    if (size == 0) {
        return 0;
    }
    PyArrayObject *made = (PyArrayObject *)PyArray_SimpleNew(1, &bytes, NPY_UINT8);
    next->arrays[MEMORY_PREPARED] = made;
    if (made == NULL) {
        return -1;
    }
    of.maker->start(PyArray_DATA(made), &of.p, room);
    return 0;
}

typedef struct {
    memory_view of;
    void *prepared;
    npy_intp first;
} preparation;

static int
call_prepare(const void *context, void *Py_UNUSED(scratch), attn_run *run)
{
    const preparation *c = context;
    return c->of.maker->make(c->prepared, &c->of.in, c->first, c->of.p.N, &c->of.p,
                             run);
}

/* Keys first <= j < end of *now. release: the GIL may be given up. */
static int
prepare(const attnext_state *state, const memory_object *memory, const py_memory *now,
        npy_intp first, npy_intp end, bool release)
{
    preparation c; /* long, and so not set to zero first */
    c.prepared = PyArray_DATA(now->arrays[MEMORY_PREPARED]);
    c.first = first;
    layer_memory_look(&c.of, memory, now, end);
    const attn_problem *p = &c.of.p;
    const double work = (double)p->B * (double)(end - first) * (double)p->Dk *
                        (double)c.of.maker->key_width(p);
    py_quiet_begin();
    return (release ? py_run : py_run_alone)(state, work, call_prepare, &c);
}

/* ---- growing --------------------------------------------------------------------- */

/* *next = *was in arrays of its own, with room for rows up to `end`, and for a mask if
 * the rows have one. On failure, too, it is for layer_memory_release. */
static int
make_room(const memory_object *memory, const py_memory *was, const py_memory *rows,
          npy_intp end, py_memory *next)
{
    const npy_intp had = room_of(was);
    const npy_intp twice = had > PY_SSIZE_T_MAX / 2 ? end : 2 * had;
    const npy_intp room = had >= end ? had : Py_MAX(twice, end);
    PyArrayObject *lens = (had < 0 ? rows : was)->arrays[MEMORY_LENS];
    *next = (py_memory){.N = was->N};
    next->arrays[MEMORY_LENS] = (PyArrayObject *)Py_XNewRef(lens);
    for (int i = 0; i < MEMORY_ROWS; i++) {
        if (was->arrays[i] == NULL && rows->arrays[i] == NULL) {
            continue;
        }
        next->arrays[i] = layer_memory_array(memory, room, memory->widths[i],
                                             i == MEMORY_MASK ? NPY_BOOL : NPY_FLOAT32);
        if (next->arrays[i] == NULL) {
            return -1;
        }
    }
    put_rows(memory, next, 0, was, was->N);
    return make_prepared(memory, next, room);
}

/* Are keys and values, which may be anybody's, still of the shape that was seen? Code that ran
 * meanwhile may have changed it in place. */
static int
check_rows(const memory_object *memory, const py_memory *rows)
{
    for (int i = MEMORY_KEYS; i <= MEMORY_VALUES; i++) {
        npy_intp dims[PY_MAX_AXES];
        const int ndim = layer_memory_shape(memory, rows->N, memory->widths[i], dims);
        if (!py_shape_fits(rows->arrays[i], ndim, dims)) {
            return py_wrong("sentence", "(s)", "other_rows");
        }
    }
    return 0;
}

/* The rows behind the N that *to has, and has room for. In arrays that nobody else knows of,
 * to which it has moved, the GIL may be given up; else nothing here runs Python code: what is
 * new is written where nobody reads or writes. */
static int
put(const attnext_state *state, const memory_object *memory, py_memory *to,
    const py_memory *rows, bool moved)
{
    const npy_intp at = to->N, end = at + rows->N;
    if (check_rows(memory, rows) < 0) {
        return -1;
    }
    put_rows(memory, to, at, rows, rows->N);
    if (to->arrays[MEMORY_PREPARED] != NULL &&
        prepare(state, memory, to, moved ? 0 : at, end, moved) < 0) {
        return -1;
    }
    to->N = end;
    return 0;
}

/* Making arrays may run Python code, a finaliser, say, and other threads run while moved
 * keys are projected. Where one of them has appended to this memory what was made is of
 * no use, and it starts again behind the rows that came. */
int
layer_memory_extend(const attnext_state *state, memory_object *memory,
                    const py_memory *rows)
{
    py_memory *now = &memory->now, was, next;
    for (;;) {
        npy_intp end;
        if (__builtin_add_overflow(now->N, rows->N, &end)) {
            return py_wrong("sentence", "(s)", "too_many_rows");
        }
        if (room_of(now) >= end &&
            (rows->arrays[MEMORY_MASK] == NULL || now->arrays[MEMORY_MASK] != NULL)) {
            return put(state, memory, now, rows, false);
        }
        layer_memory_share(&was, now);
        const int result = make_room(memory, &was, rows, end, &next) < 0
                               ? -1
                               : put(state, memory, &next, rows, true);
        const bool same = now->N == was.N &&
                          now->arrays[MEMORY_KEYS] == was.arrays[MEMORY_KEYS];
        if (result == 0 && same) {
            const py_memory old = *now;
            *now = next;
            next = old;
        }
        layer_memory_release(&was);
        layer_memory_release(&next);
        if (result < 0 || same) {
            return result;
        }
    }
}
