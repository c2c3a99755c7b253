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

#include "../core/kv_cache.h"

/* ---- adding up ------------------------------------------------------------------- */

static attn_key_sums
sums_of(const py_memory *d)
{
    return (attn_key_sums){.rows = d->N,
                           .projected = py_data(d->arrays[MEMORY_KEYS]),
                           .values = py_data(d->arrays[MEMORY_VALUES]),
                           .key_use = PyArray_DATA(d->arrays[MEMORY_MASK])};
}

static bool
is_nothing(const py_memory *d)
{
    return d->arrays[MEMORY_KEYS] == NULL;
}

/* *to += *from, which then has the shorter of the two, or nothing. */
static void
add_sums(const attnext_state *state, const memory_object *memory, py_memory *to,
         py_memory *from)
{
    if (is_nothing(to) || to->N < from->N) {
        const py_memory longer = *from;
        *from = *to;
        *to = longer;
    }
    if (!is_nothing(from)) {
        const attn_key_sums sums = sums_of(to), more = sums_of(from);
        attn_add_key_sums(&sums, &more, memory->entries,
                          layer_width_of(to->arrays[MEMORY_KEYS]),
                          layer_width_of(to->arrays[MEMORY_VALUES]), state->threads);
    }
}

/* What a backward left becomes the sums or is added to them; the arrays that are then of no more
 * use take what the next backward leaves. */
void
layer_memory_add(const attnext_state *state, PyObject *object, py_made *d)
{
    memory_object *memory = (memory_object *)object;
    py_memory more = {.arrays = {[MEMORY_KEYS] = d->projected,
                                 [MEMORY_VALUES] = d->values,
                                 [MEMORY_MASK] = d->key_use},
                      .N = layer_rows_of(d->values)};
    d->projected = d->values = d->key_use = NULL;
    py_memory old;
    Py_BEGIN_CRITICAL_SECTION(memory);
    add_sums(state, memory, &memory->sums, &more);
    old = memory->spare;
    memory->spare = more;
    Py_END_CRITICAL_SECTION();
    layer_memory_release(&old);
}

void
py_memory_spare(const py_memory *held, py_made *d)
{
    memory_object *memory = (memory_object *)held->owner;
    if (memory == NULL) {
        return;
    }
    Py_BEGIN_CRITICAL_SECTION(memory);
    py_memory *spare = &memory->spare;
    if (!is_nothing(spare) && spare->N == held->N) {
        d->projected = spare->arrays[MEMORY_KEYS];
        d->values = spare->arrays[MEMORY_VALUES];
        d->key_use = spare->arrays[MEMORY_MASK];
        *spare = (py_memory){0};
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

/* The sums for all N keys that the memory has: 0 for those that no backward knew. */
static int
complete(const attnext_state *state, const memory_object *memory, const memory_view *of,
         py_memory *sums)
{
    const npy_intp widths[MEMORY_ROWS] = {of->maker->key_width(&of->p),
                                          of->maker->value_width(&of->p), 1};
    py_memory all = {.N = of->p.N};
    bool made = true;
    if (!is_nothing(sums) && sums->N == all.N) {
        return 0;
    }
    for (int i = 0; made && i < MEMORY_ROWS; i++) {
        const bool use = i == MEMORY_MASK;
        PyArrayObject *a = layer_memory_array(memory, all.N, widths[i],
                                              use ? NPY_UINT8 : NPY_FLOAT32);
        all.arrays[i] = a;
        made = a != NULL;
        if (made) {
            PyArray_FILLWBYTE(a, use ? ATTN_UNUSED : 0);
        }
    }
    if (made) {
        add_sums(state, memory, sums, &all); /* to the longer of the two */
    }
    layer_memory_release(&all);
    return made ? 0 : -1;
}

typedef struct {
    const memory_view *of;
    attn_gradients d;
    const float *dV; /* what flows to the projected values */
} projection;

static int
call_projected(const void *context, void *scratch, attn_run *run)
{
    const projection *c = context;
    return c->of->maker->backward(&c->d, c->dV, &c->of->in, &c->of->p, scratch, run);
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
                   const memory_view *of, const py_memory *sums, py_made *d)
{
    const attn_problem *p = &of->p;
    const attn_key_sums from = sums_of(sums);
    const bool keys = memory->core.score->parameters > 0, values = p->heads > 0;
    d->keys = keys ? layer_memory_array(memory, p->N, p->Dk, NPY_FLOAT32)
                   : (PyArrayObject *)Py_NewRef(sums->arrays[MEMORY_KEYS]);
    d->values = values ? layer_memory_array(memory, p->N, p->Dv, NPY_FLOAT32)
                       : (PyArrayObject *)Py_NewRef(sums->arrays[MEMORY_VALUES]);
    if (d->keys == NULL || d->values == NULL || make_parameters(&memory->core, d) < 0) {
        return -1;
    }
    if (!keys) {
        return 0;
    }
    projection c = {.of = of, .dV = from.values};
    c.d = (attn_gradients){.keys = py_data(d->keys),
                           .values = py_data(d->values),
                           .projected = from.projected,
                           .key_use = from.key_use};
    for (int i = 0; i < ATTN_PARAMETERS; i++) {
        c.d.parameters[i] = py_data(d->parameters[i]);
    }
    const double work = 2.0 * (double)p->B * (double)p->N * (double)p->Dk *
                        (double)of->maker->key_width(p);
    py_quiet_begin();
    return py_run(state, work, call_projected, &c);
}

/* (dk, dv) of the sums of all keys; the parameters' gradients are added to grads. */
static PyObject *
gradients_of(const attnext_state *state, const memory_object *memory,
             const layer_core *layer, py_memory *sums, const py_memory *now)
{
    PyObject *result = NULL;
    py_made d = {0};
    memory_view of;
    layer_memory_look(&of, memory, now, now->N);
    if (complete(state, memory, &of, sums) == 0 &&
        through_projection(state, memory, &of, sums, &d) == 0 &&
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
    py_memory sums, spare, now;
    layer_core held;
    if (layer == NULL || layer_hold(layer, true, &held) < 0) {
        Py_XDECREF(layer);
        return NULL;
    }
    Py_BEGIN_CRITICAL_SECTION(memory);
    sums = memory->sums;
    spare = memory->spare;
    memory->sums = memory->spare = (py_memory){0};
    layer_memory_share(&now, &memory->now);
    Py_END_CRITICAL_SECTION();
    layer_memory_release(&spare);
    PyObject *result = gradients_of(state, memory, &held, &sums, &now);
    if (result == NULL && !is_nothing(&sums)) {
        Py_BEGIN_CRITICAL_SECTION(memory);
        add_sums(state, memory, &memory->sums, &sums);
        Py_END_CRITICAL_SECTION();
    }
    layer_memory_release(&sums);
    layer_memory_release(&now);
    layer_core_clear(&held);
    Py_DECREF(layer);
    return result;
}
