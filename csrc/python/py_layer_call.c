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

/* A new seed for dropout from the layer's generator. */
static int
draw_seed(PyObject *rng, py_seed *seed)
{
    PyObject *drawn = PyObject_CallMethod(
        rng, "integers", "iKOsO", 0, (unsigned long long)UINT64_MAX, Py_None, "uint64",
        Py_True); /* True: the upper end counts */
    if (drawn == NULL) {
        return -1;
    }
    int result = py_read_seed(drawn, "a seed drawn from rng", seed);
    if (drawn == Py_None) {
        PyErr_SetString(PyExc_TypeError,
                        "a seed drawn from rng must be an int, got NoneType");
        result = -1;
    }
    Py_DECREF(drawn);
    return result;
}

/* Of a call: queries, keys, values. */
enum { INPUTS = 3 };

/* object (..., rows, size) as float32; the constructor called its number of features
 * size_name. Without this the message would blame the parameter. */
PyArrayObject *
layer_read_features(PyObject *object, const char *name, char rows,
                    const char *size_name, Py_ssize_t size)
{
    PyArrayObject *a = py_float32(object, name);
    int ndim = a == NULL ? 0 : PyArray_NDIM(a);
    if (ndim >= 2 && PyArray_DIM(a, ndim - 1) != size) {
        char expected[100];
        PyOS_snprintf(expected, sizeof expected, "(..., %c, %zd): %s is %zd", rows,
                      size, size_name, size);
        py_shape_error(a, name, expected);
        Py_CLEAR(a);
    }
    return a;
}

/* What a call of the layer and its backward have in common: `given` has the rest. */
static void
begin_call(py_call *call, const layer_core *held)
{
    call->score = held->score;
    call->options = (py_options){.has_scale = held->has_scale,
                                 .scale = (float)held->scale,
                                 .num_heads = held->num_heads,
                                 .num_kv_heads = held->num_kv_heads,
                                 .return_kept = held->score->about->has_heads};
    call->keeps_inputs = true;
    call->memory = NULL;
    for (int i = 0; i < held->score->parameters; i++) {
        call->given[ARG_PARAMETER_0 + i] = (PyObject *)held->parameters[i];
    }
}

/* Makes this forward the layer's last one. */
static int
remember(const attnext_state *state, layer_object *layer, const layer_core *held,
         const py_call *call, const py_inputs *in, const py_outputs *outputs)
{
    PyObject *context = layer_context_new(state, held, call, in, outputs);
    if (context == NULL) {
        return -1;
    }
    PyObject *old_context = layer->context;
    PyArrayObject *old_weights = layer->weights;
    layer->context = context;
    layer->weights = (PyArrayObject *)Py_XNewRef(outputs->weights);
    Py_XDECREF(old_context); /* only now: it may run code that looks at the layer */
    Py_XDECREF(old_weights);
    return 0;
}

static const py_signature call_signature = {
    .function = "__call__",
    .required = 2, /* and values, unless keys is a Memory */
    .positional = 4,
    .args = {ARG_QUERIES, ARG_KEYS, ARG_VALUES, ARG_VALID_LENS},
    .method = true,
};

/* A forward of the layer as it is held; the inputs are in *call. Drawing the seed runs
 * code: what was plain before is looked at again. */
static PyObject *
forward(const attnext_state *state, layer_object *layer, const layer_core *held,
        py_call *call, PyObject **plain)
{
    py_options *o = &call->options;
    py_inputs in;
    py_outputs outputs;
    PyObject *result = NULL;

    if (layer_check_parameters(held) < 0) {
        return NULL;
    }
    o->return_lse = true; /* it makes the backward cheaper */
    o->dropout_p = held->training ? (float)held->dropout : 0.0f;
    if (o->dropout_p > 0.0f &&
        (draw_seed(held->rng, &o->seed) < 0 ||
         py_make_plain(state, &held->score->call, call->given, plain) < 0)) {
        return NULL;
    }
    if (py_forward(state, call, &in, &outputs) < 0) {
        return NULL;
    }
    if (remember(state, layer, held, call, &in, &outputs) == 0) {
        result = Py_NewRef(outputs.output);
    }
    py_outputs_clear(&outputs);
    py_inputs_clear(&in);
    return result;
}

/* queries, keys and values of a layer with parameters, those that it projects: replaced
 * in *call, owned. */
static int
read_inputs(const layer_core *held, py_call *call, PyObject *owned[INPUTS])
{
    const struct {
        py_arg arg;
        const char *name;
        char rows;
        const char *size_name;
        Py_ssize_t size;
    } inputs[INPUTS] = {
        {ARG_QUERIES, "queries", 'M', "query_size", held->query_size},
        {ARG_KEYS, "keys", 'N', "key_size", held->key_size},
        {ARG_VALUES, "values", 'N', "value_size", held->value_size},
    };
    const int count = held->score->parameters == 0    ? 0
                      : call->memory != NULL          ? 1
                      : held->score->about->has_heads ? 3
                                                      : 2;
    for (int i = 0; i < count; i++) {
        owned[i] = (PyObject *)layer_read_features(call->given[inputs[i].arg],
                                                   inputs[i].name, inputs[i].rows,
                                                   inputs[i].size_name, inputs[i].size);
        if (owned[i] == NULL) {
            return -1;
        }
        call->given[inputs[i].arg] = owned[i];
    }
    return 0;
}

/* Keys and values, or a memory, which goes into *memory. */
static int
read_keys(const attnext_state *state, const layer_object *layer, const layer_core *held,
          py_call *call, py_memory *memory)
{
    PyObject *keys = call->given[ARG_KEYS];
    if (Py_IS_TYPE(keys, state->Memory)) {
        return layer_memory_read(layer, held, keys, call, memory);
    }
    if (call->given[ARG_VALUES] == NULL) {
        PyErr_SetString(PyExc_TypeError,
                        "__call__() missing required argument 'values' (position 3)");
        return -1;
    }
    return 0;
}

static PyObject *
layer_call(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    layer_object *layer = (layer_object *)self;
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    PyObject *owned[INPUTS] = {NULL}, *plain = NULL, *result = NULL;
    py_memory memory = {0};
    layer_core held;
    py_call call;

    if (layer_hold_to_read(layer, &held) < 0) {
        return NULL;
    }
    const py_signature *signature = &held.score->call;
    if (py_parse(state, signature, args, nargs, kwnames, call.given) < 0) {
        goto done;
    }
    begin_call(&call, &held);
    PyObject *need_weights = call.given[ARG_NEED_WEIGHTS];
    call.options.return_weights = true;
    if (read_keys(state, layer, &held, &call, &memory) < 0 ||
        py_make_plain(state, signature, call.given, &plain) < 0 ||
        (kwnames != NULL && py_read_options(&call) < 0) ||
        (need_weights != NULL && py_read_flag(need_weights, "need_weights",
                                              &call.options.return_weights) < 0) ||
        read_inputs(&held, &call, owned) < 0) {
        goto done;
    }
    result = forward(state, layer, &held, &call, &plain);
done:
    Py_XDECREF(plain);
    layer_memory_release(&memory);
    for (int i = 0; i < INPUTS; i++) {
        Py_XDECREF(owned[i]);
    }
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

static const py_signature backward_signature = {
    .function = "backward",
    .required = 1,
    .positional = 1,
    .args = {ARG_GRAD_OUTPUT},
    .method = true,
};

/* What backward returns, once everything that can fail is done: dq, dk, dv, or dq alone
 * where a memory keeps the others; and what was asked for. */
static PyObject *
finish_backward(const attnext_state *state, const layer_core *held, const py_call *call,
                py_gradients *d)
{
    PyObject *parts[PY_GRADIENTS] = {(PyObject *)d->queries, (PyObject *)d->keys,
                                     (PyObject *)d->values};
    PyObject *result = py_pack_gradients(call, d, parts, call->memory == NULL ? 3 : 1);
    if (result != NULL && layer_add_gradients(state, held, d) < 0) {
        Py_CLEAR(result);
    }
    if (result != NULL && call->memory != NULL) {
        layer_memory_add(call->memory->owner, d);
    }
    return result;
}

static PyObject *
layer_backward(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
               PyObject *kwnames)
{
    layer_object *layer = (layer_object *)self;
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    PyObject *context = NULL, *plain = NULL, *result = NULL;
    layer_core held;
    py_call call;
    py_inputs in;
    py_gradients gradients;

    if (layer_hold_to_read(layer, &held) < 0) {
        return NULL;
    }
    const py_signature *signature = &held.score->call_backward;
    if (py_parse(state, signature, args, nargs, kwnames, call.given) < 0) {
        goto done;
    }
    context = Py_XNewRef(py_is_given(call.given[ARG_CONTEXT]) ? call.given[ARG_CONTEXT]
                                                              : layer->context);
    if (context == NULL) {
        PyErr_SetString(PyExc_RuntimeError,
                        "backward() needs a forward before it: call the object first");
        goto done;
    }
    begin_call(&call, &held);
    if (layer_context_read(state, &held, context, &call) < 0 ||
        py_make_plain(state, signature, call.given, &plain) < 0 ||
        (kwnames != NULL && py_read_options(&call) < 0) ||
        layer_check_parameters(&held) < 0 ||
        py_backward(state, &call, &in, &gradients) < 0) {
        goto done;
    }
    result = finish_backward(state, &held, &call, &gradients);
    py_gradients_clear(&gradients);
    py_inputs_clear(&in);
done:
    Py_XDECREF(plain);
    Py_XDECREF(context);
    layer_core_clear(&held);
    return result;
}

/* ---- the methods ----------------------------------------------------------------- */

/* What the table gives layers: an option that forwards have is the call's, another the
 * backward's. */
static void
write_signatures(py_score *score)
{
    const attn_score_info *about = score->about;
    const int takes = LAYER | py_scaled(about);
    score->call = call_signature;
    score->call_backward = backward_signature;
    unsigned char *call = score->call.args + call_signature.positional;
    unsigned char *backward = score->call_backward.args + backward_signature.positional;
#define SCORE_OPTION(ID, NAME, DEFAULT, TAKEN_BY, IF) \
    if ((takes & (TAKEN_BY)) != 0 && (IF)) {          \
        *call++ = ARG_##ID;                           \
    }
#define OPTION(ID, NAME, DEFAULT, TAKEN_BY, ...)                   \
    if ((takes & (TAKEN_BY)) != 0 && !py_lacks(about, ARG_##ID)) { \
        *((TAKEN_BY) & FORWARD ? call++ : backward++) = ARG_##ID;  \
    }
#include "py_options.def"
    *call = ARG_NEED_WEIGHTS;
    *backward = ARG_CONTEXT;
}

int
layer_fill_calls(const attnext_state *state, py_score *score, PyMethodDef *methods)
{
    const py_function functions[] = {
        {&score->call, PY_FASTCALL(layer_call)},
        {&score->call_backward, PY_FASTCALL(layer_backward)},
        {0},
    };
    write_signatures(score);
    return py_fill_methods(state, functions, METH_COEXIST, methods);
}
