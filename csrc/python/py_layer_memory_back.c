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

/* ---- adding up ------------------------------------------------------------------- */

static attn_key_sums
sums_of(const py_made *d)
{
    return (attn_key_sums){.rows = layer_rows_of(d->values),
                           .projected = py_data(d->projected),
                           .values = py_data(d->values),
                           .key_use = PyArray_DATA(d->key_use)};
}

static void
exchange(py_made *a, py_made *b)
{
    const py_made was = *a;
    a->projected = b->projected;
    a->values = b->values;
    a->key_use = b->key_use;
    b->projected = was.projected;
    b->values = was.values;
    b->key_use = was.key_use;
}

/* Of how many keys they are; -1: there are none. */
static npy_intp
keys_of(const py_made *d)
{
    return d->values == NULL ? -1 : layer_rows_of(d->values);
}

/* *to += *from, which then has the shorter of the two, or nothing. */
static void
add_sums(const attnext_state *state, const attn_kv *kv, py_made *to, py_made *from)
{
    if (keys_of(to) < keys_of(from)) {
        exchange(to, from);
    }
    if (keys_of(from) >= 0) {
        const attn_key_sums sums = sums_of(to), more = sums_of(from);
        attn_add_key_sums(&sums, &more, kv->entries, layer_width_of(to->projected),
                          layer_width_of(to->values), state->threads);
    }
}

/* The arrays that are then of no more use take what the next backward leaves. */
void
layer_memory_add(const attnext_state *state, const py_memory *held, py_made *d)
{
    memory_object *memory = (memory_object *)held->owner;
    Py_BEGIN_CRITICAL_SECTION(memory);
    add_sums(state, held->kv, &memory->sums, d);
    exchange(&memory->spare, d);
    Py_END_CRITICAL_SECTION();
}

void
py_memory_spare(const py_memory *held, py_made *d)
{
    memory_object *memory = (memory_object *)held->owner;
    Py_BEGIN_CRITICAL_SECTION(memory);
    if (keys_of(&memory->spare) == held->N) {
        exchange(&memory->spare, d);
    }
    Py_END_CRITICAL_SECTION();
}

void
py_clear_unused(const py_made *d)
{
    attn_zero_unused(py_data(d->projected), PyArray_DATA(d->key_use),
                     PyArray_SIZE(d->key_use), layer_width_of(d->projected));
}

/* ---- memory.backward() ----------------------------------------------------------- */

/* A cache, the problem of the N keys that are known of it, and what its maker takes beside. */
typedef struct {
    const attn_kv *kv;
    attn_problem p;
    attn_gradients d;
    const float *dV;
} projection;

static int
call_projected(const void *context, void *scratch, attn_run *run)
{
    const projection *c = context;
    return c->kv->maker->backward(&c->d, c->dV, &c->kv->in, &c->p, scratch, run);
}

/* A new array (..., rows, width). */
static PyArrayObject *
new_array(const memory_object *memory, npy_intp rows, npy_intp width, int type)
{
    npy_intp dims[PY_MAX_AXES];
    const int ndim = py_memory_shape((PyObject *)memory, rows, width, dims);
    return type == NPY_FLOAT32 ? py_new_float32(ndim, dims)
                               : (PyArrayObject *)PyArray_SimpleNew(ndim, dims, type);
}

/* The sums for all N keys that the memory has: 0 for those that no backward knew. */
static int
complete(const attnext_state *state, const memory_object *memory, const projection *c,
         py_made *sums)
{
    const attn_problem *p = &c->p;
    const attn_key_maker *maker = c->kv->maker;
    if (keys_of(sums) == p->N) {
        return 0;
    }
    py_made all = {
        .projected = new_array(memory, p->N, maker->key_width(p), NPY_FLOAT32),
        .values = new_array(memory, p->N, maker->value_width(p), NPY_FLOAT32),
        .key_use = new_array(memory, p->N, 1, NPY_UINT8)};
    const bool made = all.projected != NULL && all.values != NULL &&
                      all.key_use != NULL;
    if (made) {
        PyArray_FILLWBYTE(all.projected, 0);
        PyArray_FILLWBYTE(all.values, 0);
        PyArray_FILLWBYTE(all.key_use, ATTN_UNUSED);
        add_sums(state, c->kv, sums, &all); /* to the longer of the two */
    }
    py_made_clear(&all, PY_MADE);
    return made ? 0 : -1;
}

/* The gradients of the parameters that project keys, which the memory's core has. */
static int
make_parameters(const layer_core *core, py_made *d)
{
    for (int i = 0; i < core->score->parameters; i++) {
        npy_intp dims[PY_PARAMETER_AXES];
        if (core->parameters[i] != NULL &&
            (d->parameters[i] = py_new_float32(layer_shape(core, i, dims), dims)) ==
                NULL) {
            return -1;
        }
    }
    return 0;
}

/* From what flows to the projected keys and values, the sums of all keys, to the gradients of
 * keys, values and those parameters; what nothing projects has its own already. */
static int
through_projection(const attnext_state *state, const memory_object *memory,
                   projection *c, const py_made *sums, py_made *d)
{
    const attn_problem *p = &c->p;
    const bool keys = memory->core.score->parameters > 0, values = p->heads > 0;
    d->keys = keys ? new_array(memory, p->N, p->Dk, NPY_FLOAT32)
                   : (PyArrayObject *)Py_NewRef(sums->projected);
    d->values = values ? new_array(memory, p->N, p->Dv, NPY_FLOAT32)
                       : (PyArrayObject *)Py_NewRef(sums->values);
    if (d->keys == NULL || d->values == NULL || make_parameters(&memory->core, d) < 0) {
        return -1;
    }
    if (!keys) {
        return 0;
    }
    c->dV = py_data(sums->values);
    c->d = (attn_gradients){.keys = py_data(d->keys),
                            .values = py_data(d->values),
                            .projected = py_data(sums->projected),
                            .key_use = PyArray_DATA(sums->key_use)};
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        c->d.parameters[i] = py_data(d->parameters[i]);
    }
    const double work = 2.0 * (double)p->B * (double)p->N * (double)p->Dk *
                        (double)c->kv->maker->key_width(p);
    py_quiet_begin();
    return py_run(state, work, true, call_projected, c);
}

/* (dk, dv) of the sums of all keys; the parameters' gradients are added to grads. */
static PyObject *
gradients_of(const attnext_state *state, const memory_object *memory,
             const layer_core *layer, py_made *sums, const py_memory *now)
{
    PyObject *result = NULL;
    py_made d = {0};
    projection c = {.kv = now->kv, .p = now->kv->p};
    c.p.N = now->N;
    if (complete(state, memory, &c, sums) == 0 &&
        through_projection(state, memory, &c, sums, &d) == 0 &&
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
    py_memory now;
    layer_core held;
    if (layer == NULL || layer_hold(layer, true, &held) < 0) {
        Py_XDECREF(layer);
        return NULL;
    }
    Py_BEGIN_CRITICAL_SECTION(memory);
    sums = memory->sums;
    spare = memory->spare;
    memory->sums = memory->spare = (py_made){0};
    layer_memory_share(&now, &memory->now);
    Py_END_CRITICAL_SECTION();
    py_made_clear(&spare, PY_MADE);
    PyObject *result = gradients_of(state, memory, &held, &sums, &now);
    if (result == NULL) {
        Py_BEGIN_CRITICAL_SECTION(memory);
        add_sums(state, now.kv, &memory->sums, &sums);
        Py_END_CRITICAL_SECTION();
    }
    py_made_clear(&sums, PY_MADE);
    py_memory_clear(&now);
    layer_core_clear(&held);
    Py_DECREF(layer);
    return result;
}
