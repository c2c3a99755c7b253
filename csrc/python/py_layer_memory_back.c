/*
 * py_layer_memory_back.c -- the gradients of a memory's keys and values: added up over the
 * backwards of its calls, as far as one call takes them, and then through the projection
 * of the keys, once.
 *
 * A backward leaves arrays of its own, of as many keys as its call knew. The first become
 * the sums; then the shorter is always added to the longer. So adding cannot fail, and
 * happens under the GIL, where threads do it one after another.
 */
#include "py_layer.h"
#include "py_run.h"

#include <string.h>

void
layer_memory_clear_sums(memory_sums *sums)
{
    Py_CLEAR(sums->projected);
    Py_CLEAR(sums->values);
    Py_CLEAR(sums->key_use);
}

static npy_intp
rows_of(PyArrayObject *a)
{
    return PyArray_DIM(a, PyArray_NDIM(a) - 2);
}

/* ---- adding up ------------------------------------------------------------------- */

static void
add_floats(float *to, const float *from, npy_intp n)
{
    for (npy_intp i = 0; i < n; i++) {
        to[i] += from[i];
    }
}

/* to (..., rows or more, width) += from (..., rows, width), entry by entry; use (..., rows)
 * of `from`, or NULL: rows without use are 0. */
static void
add_rows(PyArrayObject *to, PyArrayObject *from, const uint8_t *use)
{
    const npy_intp rows = rows_of(from), room = rows_of(to);
    const npy_intp width = PyArray_DIM(from, PyArray_NDIM(from) - 1);
    const npy_intp entries = rows * width == 0 ? 0
                                               : PyArray_SIZE(from) / (rows * width);
    for (npy_intp e = 0; e < entries; e++) {
        float *to_e = py_data(to) + e * room * width;
        const float *from_e = py_data(from) + e * rows * width;
        if (use == NULL) {
            add_floats(to_e, from_e, rows * width);
            continue;
        }
        for (npy_intp j = 0; j < rows; j++) {
            if (use[e * rows + j] != ATTN_UNUSED) {
                add_floats(to_e + j * width, from_e + j * width, width);
            }
        }
    }
}

/* A key is used if it is in either. */
static void
add_use(PyArrayObject *to, PyArrayObject *from)
{
    const npy_intp rows = rows_of(from), room = rows_of(to);
    uint8_t *to_use = PyArray_DATA(to);
    const uint8_t *from_use = PyArray_DATA(from);
    for (npy_intp i = 0; i < PyArray_SIZE(from); i++) {
        to_use[i / rows * room + i % rows] &= from_use[i];
    }
}

/* *to += *from, which then holds arrays of no more use, or nothing. */
static void
add_sums(memory_sums *to, memory_sums *from)
{
    if (to->values == NULL || rows_of(to->values) < rows_of(from->values)) {
        memory_sums longer = *from;
        *from = *to;
        *to = longer;
    }
    if (from->values != NULL) {
        add_rows(to->projected, from->projected, PyArray_DATA(from->key_use));
        add_rows(to->values, from->values, NULL);
        add_use(to->key_use, from->key_use);
    }
}

void
layer_memory_add(PyObject *object, py_gradients *d)
{
    memory_object *memory = (memory_object *)object;
    memory_sums left = {d->projected, d->values, d->key_use};
    d->projected = d->values = d->key_use = NULL;
    add_sums(&memory->sums, &left);
    layer_memory_clear_sums(&memory->spare);
    memory->spare = left;
}

void
py_memory_spare(const py_memory *held, py_gradients *d)
{
    memory_object *memory = (memory_object *)held->owner;
    const memory_sums spare = memory == NULL ? (memory_sums){0} : memory->spare;
    if (spare.values != NULL && rows_of(spare.values) == held->N) {
        memory->spare = (memory_sums){0};
        d->projected = spare.projected;
        d->values = spare.values;
        d->key_use = spare.key_use;
    }
}

void
py_clear_unused(const py_gradients *d)
{
    const npy_intp width = PyArray_DIM(d->projected, PyArray_NDIM(d->projected) - 1);
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
    npy_intp dims[PY_MAX_AXES];
    int ndim = py_note_shape(now->keys, dims);
    dims[ndim - 2] = now->N;
    dims[ndim - 1] = width;
    PyArrayObject *a = type == NPY_FLOAT32
                           ? py_new_float32(ndim, dims)
                           : (PyArrayObject *)PyArray_SimpleNew(ndim, dims, type);
    if (a != NULL) {
        memset(PyArray_DATA(a), fill, (size_t)PyArray_NBYTES(a));
    }
    return a;
}

/* The sums for all keys that the memory has: 0 for those that no backward knew. */
static int
complete(memory_sums *sums, const py_memory *now, const attn_problem *p)
{
    if (sums->values != NULL && rows_of(sums->values) == now->N) {
        return 0;
    }
    memory_sums all = {filled(now, py_key_width(p), NPY_FLOAT32, 0), NULL, NULL};
    all.values = all.projected == NULL ? NULL
                                       : filled(now, py_value_width(p), NPY_FLOAT32, 0);
    all.key_use = all.values == NULL ? NULL : filled(now, 1, NPY_UINT8, ATTN_UNUSED);
    if (all.key_use == NULL) {
        layer_memory_clear_sums(&all);
        return -1;
    }
    if (sums->values != NULL) {
        add_sums(&all, sums);
    }
    layer_memory_clear_sums(sums);
    *sums = all;
    return 0;
}

typedef struct {
    const attn_problem *p;
    attn_inputs in;
    attn_gradients d;
    const float *dV; /* multi-head: what flows to the projected values */
} projection;

static size_t
projected_workspace(const void *context, int Py_UNUSED(threads))
{
    const projection *c = context;
    return c->p->heads > 0 ? attn_multi_head_projected_workspace(c->p)
                           : attn_projected_backward_workspace(c->p);
}

static int
call_projected(const void *context, void *scratch, attn_run *run)
{
    const projection *c = context;
    return c->p->heads > 0
               ? attn_multi_head_projected_backward(&c->d, c->dV, &c->in, c->p, scratch,
                                                    run)
               : attn_projected_backward(&c->d, &c->in.keys, c->p, scratch, run);
}

/* From what flows to the projected keys to the gradients of the keys, in d->keys, and of
 * the parameters that project them. */
static int
through_projection(const attnext_state *state, const layer_core *core,
                   const memory_sums *sums, const py_memory *now, const attn_problem *p,
                   py_gradients *d)
{
    projection context = {
        .p = p,
        .in = {.keys = attn_dense(py_data(now->keys), rows_of(now->keys), p->Dk),
               .values = attn_dense(py_data(now->values), rows_of(now->values), p->Dv)},
        .dV = py_data(sums->values),
        .d = {.projected = py_data(sums->projected),
              .key_use = PyArray_DATA(sums->key_use)},
    };
    d->keys = filled(now, p->Dk, NPY_FLOAT32, 0);
    d->values = p->heads > 0 ? filled(now, p->Dv, NPY_FLOAT32, 0)
                             : (PyArrayObject *)Py_NewRef(sums->values);
    if (d->keys == NULL || d->values == NULL) {
        return -1;
    }
    context.d.keys = py_data(d->keys);
    context.d.values = py_data(d->values);
    for (int i = 0; i < core->score->parameters; i++) {
        if (core->parameters[i] != NULL && py_projects_keys(core->score, i)) {
            npy_intp dims[PY_PARAMETER_AXES];
            d->parameters[i] = py_new_float32(layer_shape(core, i, dims), dims);
            if (d->parameters[i] == NULL) {
                return -1;
            }
            context.d.parameters[i] = py_data(d->parameters[i]);
        }
    }
    const double work = 2.0 * (double)p->B * (double)p->N * (double)p->Dk *
                        (double)py_key_width(p);
    return py_run(state, work, projected_workspace, call_projected, &context);
}

/* (dk, dv) of the sums of all keys; the parameters' gradients are added to grads. */
static PyObject *
gradients_of(const attnext_state *state, const layer_core *core,
             const memory_sums *sums, const py_memory *now, const attn_problem *p)
{
    py_gradients d = {0};
    PyObject *result = NULL;
    bool projects = false;
    for (int i = 0; i < core->score->parameters; i++) {
        projects = projects || py_projects_keys(core->score, i);
    }
    if (!projects) {
        return PyTuple_Pack(2, sums->projected, sums->values);
    }
    if (through_projection(state, core, sums, now, p, &d) == 0) {
        result = PyTuple_Pack(2, d.keys, d.values);
    }
    if (result != NULL && layer_add_gradients(state, core, &d) < 0) {
        Py_CLEAR(result);
    }
    py_gradients_clear(&d);
    return result;
}

/* The sums are taken out of the memory first, for other threads may add to it and ask it
 * meanwhile; where this fails they are put back. */
PyObject *
layer_memory_backward(const attnext_state *state, const layer_core *held,
                      memory_object *memory)
{
    memory_sums sums = memory->sums;
    PyObject *result = NULL;
    py_memory now;
    memory->sums = (memory_sums){0};
    layer_memory_clear_sums(&memory->spare);
    layer_memory_share(&now, &memory->now);
    const attn_problem p = layer_memory_problem(&memory->core, &now, now.N);
    if (complete(&sums, &now, &p) == 0) {
        result = gradients_of(state, held, &sums, &now, &p);
    }
    if (result == NULL && sums.values != NULL) {
        add_sums(&memory->sums, &sums);
    }
    layer_memory_clear_sums(&sums);
    layer_memory_release(&now);
    return result;
}
