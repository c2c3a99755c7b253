/*
 * py_layer_call.c -- what an AdditiveAttention, a DotProductAttention and a
 * MultiHeadAttention do, as if it were Python:
 *
 *     class Layer:
 *         def __call__(self, queries, keys, values, valid_lens=None, *,
 *                      need_weights=True, **options):
 *             p = self.dropout if self.training else 0
 *             seed = self._rng.integers(0, 2**64, dtype=uint64) if p > 0 else None
 *             output, weights, lse = attention(queries, keys, values, ...)
 *             self.context = Context(queries, keys, values, ...)
 *             self.attention_weights = weights if need_weights else None
 *             return output
 *
 *         def backward(self, grad_output, *, context=None, **options):
 *             d = attention_backward(grad_output, context or self.context, ...)
 *             for name, grad in self.grads.items():
 *                 grad += d[name]
 *             return d.queries, d.keys, d.values, *(what the options ask for)
 */
#include "py_layer.h"

/* ---- forward --------------------------------------------------------------------- */

int
layer_check_features(const layer_core *core, py_arg which, PyObject *object)
{
    const bool projects = core->score->parameters > 0 &&
                          (which != ARG_VALUES || core->score->about->has_heads);
    const Py_ssize_t size = which == ARG_QUERIES ? core->query_size
                            : which == ARG_KEYS  ? core->key_size
                                                 : core->value_size;
    PyArrayObject *a = (PyArrayObject *)object;
    if (!projects || !py_is_given(object) || PyArray_NDIM(a) < 2 ||
        PyArray_DIM(a, PyArray_NDIM(a) - 1) == size) {
        return 0;
    }
    return py_wrong("features", "(sOn)", py_argument_rows[which].name, a, size);
}

/* A call of the layer, or its backward: what is given, and what it has itself. */
static int
begin_call(py_call *call, const attnext_state *state, const layer_core *held,
           py_form form, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const py_score *score = held->score;
    py_begin(call, score, form);
    if (py_parse(state, &score->signatures[form], args, nargs, kwnames, call->given) <
        0) {
        return -1;
    }
    call->options = (py_options){
        .scale = {held->scale != NULL,
                  held->scale == NULL ? 0.0f : (float)PyFloat_AS_DOUBLE(held->scale)},
        .num_heads = held->num_heads,
        .num_kv_heads = held->num_kv_heads,
        .return_weights = true,
        .return_lse = true, /* it makes the backward cheaper */
        .return_kept = score->about->has_heads};
    for (int i = 0; i < score->parameters; i++) {
        call->given[ARG_PARAMETER_0 + i] = held->objects[i];
    }
    return 0;
}

/* Makes this forward the layer's last one. */
static int
remember(const attnext_state *state, layer_object *layer, const layer_core *held,
         const py_call *call)
{
    PyObject *context = layer_context_new(state, held, call);
    if (context == NULL) {
        return -1;
    }
    PyObject *old_context, *old_weights;
    Py_BEGIN_CRITICAL_SECTION(layer);
    old_context = layer->core.context;
    old_weights = layer->core.weights;
    layer->core.context = context;
    layer->core.weights = Py_XNewRef(call->made.weights);
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(old_context); /* only now: it may run code that looks at the layer */
    Py_XDECREF(old_weights);
    return 0;
}

/* A forward of the layer as it is held, of a call that was read. Drawing the seed from the
 * layer's generator runs code: what was plain before is looked at again. */
static int
forward(const attnext_state *state, const layer_core *held, py_call *call)
{
    py_options *o = &call->options;
    if (layer_check_parameters(held, NULL) < 0) {
        return -1;
    }
    o->dropout_p = held->training ? (float)held->dropout : 0.0f;
    if (o->dropout_p > 0.0f) {
        PyObject *drawn = py_ask("attnext._reading", "drawn_seed", "(O)", held->rng);
        o->seed = (py_seed){true, drawn ? PyLong_AsUnsignedLongLong(drawn) : 0};
        Py_XDECREF(drawn);
        if (drawn == NULL || py_read_call(state, call, NULL) < 0) {
            return -1;
        }
    }
    return py_attend(state, call);
}

static int
check_inputs(const layer_core *held, const py_call *call)
{
    const int last = call->memory.kv == NULL ? ARG_VALUES : ARG_QUERIES;
    int result = 0;
    for (int which = ARG_QUERIES; result == 0 && which <= last; which++) {
        result = layer_check_features(held, (py_arg)which, call->given[which]);
    }
    return result;
}

/* Keys and values, or a memory. */
static int
read_keys(const attnext_state *state, const layer_object *layer, const layer_core *held,
          py_call *call)
{
    PyObject *keys = call->given[ARG_KEYS];
    if (Py_IS_TYPE(keys, state->Memory)) {
        return layer_memory_read(layer, held, keys, call);
    }
    return call->given[ARG_VALUES] == NULL ? py_wrong("sentence", "(s)", "no_values")
                                           : 0;
}

PyObject *
layer_call(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    layer_object *layer = (layer_object *)self;
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    PyObject *result = NULL;
    layer_core held;
    py_call call;

    if (layer_hold(layer, true, &held) < 0) {
        return NULL;
    }
    if (begin_call(&call, state, &held, OF_LAYER, args, nargs, kwnames) == 0 &&
        read_keys(state, layer, &held, &call) == 0 &&
        py_read_call(state, &call, kwnames) == 0 && check_inputs(&held, &call) == 0 &&
        forward(state, &held, &call) == 0 &&
        remember(state, layer, &held, &call) == 0) {
        result = Py_NewRef(call.made.output);
    }
    py_end(&call);
    layer_core_clear(&held);
    return result;
}

/* Python counts how deep functions and methods call each other, but not this. */
PyObject *
layer_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf,
                 PyObject *kwnames)
{
    if (Py_EnterRecursiveCall(" while calling a layer") != 0) {
        return NULL;
    }
    PyObject *result = layer_call(self, args, PyVectorcall_NARGS(nargsf), kwnames);
    Py_LeaveRecursiveCall();
    return result;
}

/* ---- backward -------------------------------------------------------------------- */

/* What backward returns, once everything that can fail is done: dq, dk, dv, or dq alone
 * where a memory keeps the others; and what was asked for. */
static PyObject *
finish_backward(const attnext_state *state, const layer_core *held, py_call *call)
{
    PyObject *result = py_pack_gradients(state, call);
    if (result != NULL && layer_add_gradients(state, held, &call->made) < 0) {
        Py_CLEAR(result);
    }
    if (result != NULL && call->memory.kv != NULL) {
        layer_memory_add(state, &call->memory, &call->made);
    }
    return result;
}

PyObject *
layer_backward(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
               PyObject *kwnames)
{
    layer_object *layer = (layer_object *)self;
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    PyObject *result = NULL;
    layer_core held;
    py_call call;

    if (layer_hold(layer, true, &held) < 0) {
        return NULL;
    }
    if (begin_call(&call, state, &held, OF_LAYER_BACKWARD, args, nargs, kwnames) == 0 &&
        layer_context_read(state, &held, &call) == 0 &&
        py_read_call(state, &call, kwnames) == 0 &&
        layer_check_parameters(&held, NULL) == 0 && py_attend(state, &call) == 0) {
        result = finish_backward(state, &held, &call);
    }
    py_end(&call);
    layer_core_clear(&held);
    return result;
}
