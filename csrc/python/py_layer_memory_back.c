/*
 * py_layer_memory_back.c -- the gradients of a memory's keys and values: added up over the
 * backwards of its calls, as far as one call takes them, and then through the projection
 * of the keys, once.
 *
 * A backward leaves arrays of its own, of as many keys as its call knew. The first become
 * the sums; then the shorter is always added to the longer. So adding cannot fail, and
 * happens under the GIL, or a lock, where threads do it one after another.
 */
#include "py_layer.h"
#include "py_run.h"

#include <string.h>

#include "../os/parallel.h"

/* ---- adding up ------------------------------------------------------------------- */

static npy_intp
width_of(PyArrayObject *a)
{
    return PyArray_DIM(a, PyArray_NDIM(a) - 1);
}

/* row k of `to`, (..., width), += row i of `from` */
static inline void
add_row(PyArrayObject *to, npy_intp k, PyArrayObject *from, npy_intp i, npy_intp width)
{
    float *to_k = py_data(to) + k * width;
    const float *from_i = py_data(from) + i * width;
    for (npy_intp d = 0; d < width; d++) {
        to_k[d] += from_i[d];
    }
}

typedef struct {
    const py_made *to, *from;
} addition;

/* A key is used if it is in either; what flows to the projection of one that is not was
 * never written. */
static void
add_entry(void *context, int64_t e, int Py_UNUSED(worker))
{
    const py_made *to = ((addition *)context)->to, *from = ((addition *)context)->from;
    const npy_intp rows = layer_rows_of(from->values);
    const npy_intp key = width_of(to->projected), value = width_of(to->values);
    const uint8_t *from_use = PyArray_DATA(from->key_use);
    uint8_t *to_use = PyArray_DATA(to->key_use);
    npy_intp i = e * rows, k = e * layer_rows_of(to->values);
    for (npy_intp end = i + rows; i < end; i++, k++) {
        if (from_use[i] != ATTN_UNUSED) {
            add_row(to->projected, k, from->projected, i, key);
        }
        add_row(to->values, k, from->values, i, value);
        to_use[k] &= from_use[i];
    }
}

/* What it takes to add a number to another in memory, which is what there is to wait for. */
static const double ADDITION_US = 0.6e-3;

/* *to += *from, which then has the shorter of the two, or nothing. */
static void
add_sums(const attnext_state *state, py_made *to, py_made *from)
{
    if (to->values == NULL || layer_rows_of(to->values) < layer_rows_of(from->values)) {
        const py_made longer = *from;
        *from = *to;
        *to = longer;
    }
    if (from->values != NULL && PyArray_SIZE(from->key_use) > 0) {
        const npy_intp n = PyArray_SIZE(from->key_use);
        const npy_intp each = width_of(to->projected) + width_of(to->values);
        addition context = {to, from};
        attn_run run = {.threads = state->threads};
        attn_parallel_for(&run, n / layer_rows_of(from->values),
                          ADDITION_US * (double)n * (double)each, add_entry, &context);
    }
}

static const py_made no_sums;

/* *to gets what *from has of sums. */
static void
move_sums(py_made *to, py_made *from)
{
    to->projected = from->projected;
    to->values = from->values;
    to->key_use = from->key_use;
    from->projected = from->values = from->key_use = NULL;
}

/* What was left becomes the sums or is added to them; the arrays that are then of no more
 * use take what the next backward leaves. */
void
layer_memory_add(const attnext_state *state, PyObject *object, py_made *d)
{
    memory_object *memory = (memory_object *)object;
    py_made old;
    Py_BEGIN_CRITICAL_SECTION(memory);
    old = memory->spare;
    memory->spare = no_sums;
    move_sums(&memory->spare, d);
    add_sums(state, &memory->sums, &memory->spare);
    Py_END_CRITICAL_SECTION();
    py_made_clear(&old, PY_MADE);
}

void
py_memory_spare(const py_memory *held, py_made *d)
{
    memory_object *memory = (memory_object *)held->owner;
    if (memory == NULL) {
        return;
    }
    Py_BEGIN_CRITICAL_SECTION(memory);
    if (memory->spare.values != NULL &&
        layer_rows_of(memory->spare.values) == held->N) {
        move_sums(d, &memory->spare);
    }
    Py_END_CRITICAL_SECTION();
}

void
py_clear_unused(const py_made *d)
{
    const npy_intp width = width_of(d->projected);
    const uint8_t *use = PyArray_DATA(d->key_use);
    for (npy_intp i = 0; i < PyArray_SIZE(d->key_use); i++) {
        if (use[i] == ATTN_UNUSED) {
            memset(py_data(d->projected) + i * width, 0, (size_t)width * sizeof(float));
        }
    }
}

/* ---- memory.backward() ----------------------------------------------------------- */

/* (..., N, width) as the keys, every byte `fill`. */
static PyArrayObject *
filled(const py_memory *now, npy_intp width, int type, int fill)
{
    PyArrayObject *keys = now->arrays[MEMORY_KEYS];
    PyArrayObject *a = layer_memory_array(PyArray_NDIM(keys), PyArray_DIMS(keys),
                                          now->N, width, type);
    if (a != NULL) {
        memset(PyArray_DATA(a), fill, (size_t)PyArray_NBYTES(a));
    }
    return a;
}

/* The sums for all keys that the memory has: 0 for those that no backward knew. */
static int
complete(const attnext_state *state, py_made *sums, const memory_view *of,
         const py_memory *now)
{
    if (sums->values != NULL && layer_rows_of(sums->values) == now->N) {
        return 0;
    }
    const npy_intp width = of->maker->value_width(&of->p);
    py_made all = {
        .projected = filled(now, of->maker->key_width(&of->p), NPY_FLOAT32, 0)};
    const bool made = all.projected != NULL &&
                      (all.key_use = filled(now, 1, NPY_UINT8, ATTN_UNUSED)) != NULL &&
                      (all.values = filled(now, width, NPY_FLOAT32, 0)) != NULL;
    if (made) { /* the longer of the two */
        add_sums(state, sums, &all);
    }
    py_made_clear(&all, PY_MADE);
    return made ? 0 : -1;
}

typedef struct {
    memory_view of;
    attn_gradients d;
    const float *dV; /* what flows to the projected values */
} projection;

static int
call_projected(const void *context, void *scratch, attn_run *run)
{
    const projection *c = context;
    return c->of.maker->backward(&c->d, c->dV, &c->of.in, &c->of.p, scratch, run);
}

/* From what flows to the projected keys to the gradients of the keys, in d->keys, of the
 * values, and of the parameters that project them, which the core has. */
static int
through_projection(const attnext_state *state, const layer_core *core,
                   const py_made *sums, const py_memory *now, projection *c, py_made *d)
{
    const attn_problem *p = &c->of.p;
    const bool projects = core->score->parameters > 0;
    d->keys = projects ? filled(now, p->Dk, NPY_FLOAT32, 0)
                       : (PyArrayObject *)Py_NewRef(sums->projected);
    if (d->keys == NULL) {
        return -1;
    }
    d->values = p->heads > 0 ? filled(now, p->Dv, NPY_FLOAT32, 0)
                             : (PyArrayObject *)Py_NewRef(sums->values);
    if (d->values == NULL || !projects) {
        return d->values == NULL ? -1 : 0;
    }
    c->dV = py_data(sums->values);
    c->d = (attn_gradients){.keys = py_data(d->keys),
                            .values = py_data(d->values),
                            .projected = py_data(sums->projected),
                            .key_use = PyArray_DATA(sums->key_use)};
    for (int i = 0; i < core->score->parameters; i++) {
        if (core->parameters[i] != NULL) {
            npy_intp dims[PY_PARAMETER_AXES];
            d->parameters[i] = py_new_float32(layer_shape(core, i, dims), dims);
            if (d->parameters[i] == NULL) {
                return -1;
            }
            c->d.parameters[i] = py_data(d->parameters[i]);
        }
    }
    const double work = 2.0 * (double)p->B * (double)p->N * (double)p->Dk *
                        (double)c->of.maker->key_width(p);
    py_quiet_begin();
    return py_run(state, work, call_projected, c);
}

/* (dk, dv) of the sums of all keys; the parameters' gradients are added to grads. */
static PyObject *
gradients_of(const attnext_state *state, const memory_object *memory,
             const layer_core *layer, py_made *sums, const py_memory *now)
{
    PyObject *result = NULL;
    py_made d = {0};
    projection c;
    layer_memory_look(&c.of, &memory->core, now, now->N);
    if (complete(state, sums, &c.of, now) == 0 &&
        through_projection(state, &memory->core, sums, now, &c, &d) == 0 &&
        (result = PyTuple_Pack(2, d.keys, d.values)) != NULL &&
        layer_add_gradients(state, layer, &d) < 0) {
        Py_CLEAR(result);
    }
    py_made_clear(&d, PY_MADE);
    return result;
}

/* The sums are taken out of the memory first, for other threads may add to it and ask it
 * meanwhile; where this fails they are put back. */
PyObject *
layer_memory_backward(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    memory_object *memory = (memory_object *)self;
    layer_object *layer = layer_memory_layer(memory);
    py_made sums, spare;
    layer_core held;
    py_memory now;
    if (layer == NULL || layer_hold(layer, true, &held) < 0) {
        Py_XDECREF(layer);
        return NULL;
    }
    Py_BEGIN_CRITICAL_SECTION(memory);
    sums = memory->sums;
    spare = memory->spare;
    memory->sums = memory->spare = no_sums;
    Py_END_CRITICAL_SECTION();
    py_made_clear(&spare, PY_MADE);
    layer_memory_hold(memory, &now);
    PyObject *result = gradients_of(state, memory, &held, &sums, &now);
    if (result == NULL && sums.values != NULL) {
        Py_BEGIN_CRITICAL_SECTION(memory);
        add_sums(state, &memory->sums, &sums);
        Py_END_CRITICAL_SECTION();
    }
    py_made_clear(&sums, PY_MADE);
    layer_memory_release(&now);
    layer_core_clear(&held);
    Py_DECREF(layer);
    return result;
}
