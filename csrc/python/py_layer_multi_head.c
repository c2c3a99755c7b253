/*
 * py_layer_multi_head.c -- the type MultiHeadAttention: its constructor and its face.
 */
#include "py_layer.h"

#include <structmember.h>

PyDoc_STRVAR(multi_head_doc,
"MultiHeadAttention(key_size, query_size, value_size, num_hiddens, num_heads,\n"
"dropout=0.0, *, bias=False, num_kv_heads=None, rng=None)\n"
"--\n\n"
"Multi-head attention: heads of scaled dot-product attention between linear layers.\n"
"\n"
"Parameters\n"
"----------\n"
"key_size : int\n"
"    Features of a key, Dk >= 0.\n"
"query_size : int\n"
"    Features of a query, Dq >= 0.\n"
"value_size : int\n"
"    Features of a value, Dv >= 0.\n"
"num_hiddens : int\n"
"    Features of the heads together and of the output, H >= 1.\n"
"num_heads : int\n"
"    How many heads, a divisor of `num_hiddens`.\n"
"dropout : float, optional\n"
"    Probability, 0 <= dropout < 1, that an attention weight is dropped in training.\n"
"bias : bool, optional\n"
"    Whether the linear layers have biases.\n"
"num_kv_heads : int, optional\n"
"    How many heads keys and values have, a divisor of `num_heads`, as many by default:\n"
"    each serves a group of heads of the queries (grouped-query attention).\n"
"rng : None, int, numpy.random.Generator, ..., optional\n"
"    Seed of the initial parameters and of dropout: anything\n"
"    `numpy.random.default_rng` takes. A Generator is used itself, not copied.\n"
"\n"
"Attributes\n"
"----------\n"
"W_q : ndarray, float32, shape (H, Dq)\n"
"    Projection of the queries. This and the other parameters are the live arrays;\n"
"    what is assigned to one is converted to float32 and copied into it.\n"
"W_k : ndarray, float32, shape (Hk, Dk)\n"
"    Projection of the keys, Hk = H / num_heads * num_kv_heads.\n"
"W_v : ndarray, float32, shape (Hk, Dv)\n"
"    Projection of the values.\n"
"W_o : ndarray, float32, shape (H, H)\n"
"    Projection of the heads' outputs.\n"
"b_q, b_k, b_v, b_o : ndarray, float32, or None\n"
"    Their biases.\n"
"attention_weights : ndarray, float32, shape (..., num_heads, M, N), or None\n"
"    The weights of the last call, before dropout.\n"
"context : Context or None\n"
"    What the last call saved for `backward`.\n"
"grads : dict\n"
"    The gradient of each parameter, added up since the last `zero_grad`.\n"
"training : bool\n"
"    Whether dropout acts; True at first.\n"
"key_size, query_size, value_size, num_hiddens, num_heads, dropout, num_kv_heads\n"
"    As given; num_kv_heads is num_heads where it was not.\n"
"\n"
"See Also\n"
"--------\n"
"DotProductAttention : One head, without parameters.\n"
"multi_head_attention : The same as a function of arrays.\n"
"Memory : Keys and values that stay while queries come step by step.\n"
"\n"
"Notes\n"
"-----\n"
"``output = concat(head_1, ..., head_h) W_o^T + b_o``, where each head is scaled\n"
"dot-product attention over its columns of ``queries W_q^T + b_q``, ``keys W_k^T +\n"
"b_k`` and ``values W_v^T + b_v`` (Vaswani et al. 2017, \"Attention is all you need\",\n"
"section 3.2.2). Names, shapes and the order of the arguments are those of *Dive into\n"
"Deep Learning*: 2nd ed. (zh) 10.5, the names also those of 1.0 (en) 11.5.\n"
"\n"
"`mask`, `bias`, `sink` and `scale` of a call belong to heads: they broadcast to (...,\n"
"num_heads, M, N), (..., num_heads, M) and (..., num_heads). A mask or bias has all\n"
"these axes, ``mask[:, None]`` if there is one for each entry, ``mask[None]`` if one\n"
"for each head, or no more than (M, N). Heads share `valid_lens`. Self-attention is a call with the same array\n"
"three times, whose gradients the caller adds.\n"
"\n"
"The parameters are drawn as torch.nn.Linear draws its own, uniformly between\n"
"-1/sqrt(n) and 1/sqrt(n) with n inputs of the layer: ``rng.uniform(-bound, bound,\n"
"shape)`` as float32, in the order W_q, W_k, W_v, W_o, b_q, b_k, b_v, b_o. Each call in\n"
"training with dropout then draws one seed, ``rng.integers(0, 2**64,\n"
"dtype=np.uint64)``.\n"
"\n"
"Objects can be pickled and copied. A copy has parameters and gradients of its own,\n"
"and the attributes of a subclass; the generator is copied by pickle and\n"
"`copy.deepcopy` and shared by `copy.copy`. What the last call left, `context` and\n"
"`attention_weights`, is not copied.\n"
"\n"
"Examples\n"
"--------\n"
"The example of the book: all keys are equal.\n"
"\n"
">>> import numpy as np\n"
">>> from attnext import MultiHeadAttention\n"
">>> mha = MultiHeadAttention(100, 100, 100, num_hiddens=100, num_heads=5, dropout=0.5)\n"
">>> X, Y = np.ones((2, 4, 100)), np.ones((2, 6, 100))\n"
">>> mha.eval()(X, Y, Y, [3, 2]).shape\n"
"(2, 4, 100)\n"
">>> mha.attention_weights.shape\n"
"(2, 5, 4, 6)\n");

static PyObject *
multi_head_new(PyTypeObject *type, PyObject *Py_UNUSED(args),
               PyObject *Py_UNUSED(kwargs))
{
    return layer_new(type, SCORE_multi_head);
}

/* What a constructor is given, borrowed. */
typedef struct {
    PyObject *key_size, *query_size, *value_size, *num_hiddens, *num_heads;
    PyObject *dropout, *bias, *num_kv_heads, *rng;
} multi_head_arguments;

static int
parse(PyObject *args, PyObject *kwargs, multi_head_arguments *given)
{
    static char *names[] = {"key_size",  "query_size", "value_size", "num_hiddens",
                            "num_heads", "dropout",    "bias",       "num_kv_heads",
                            "rng",       NULL};
    *given = (multi_head_arguments){.bias = Py_False};
    return PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOO|O$OOO:MultiHeadAttention",
                                       names, &given->key_size, &given->query_size,
                                       &given->value_size, &given->num_hiddens,
                                       &given->num_heads, &given->dropout, &given->bias,
                                       &given->num_kv_heads, &given->rng)
               ? 0
               : -1;
}

static int
multi_head_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    multi_head_arguments given;
    bool bias;
    int result = -1;
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    layer_core core = {.score = ((layer_object *)self)->core.score, .training = true};

    if (parse(args, kwargs, &given) < 0 ||
        layer_read_sizes(&core, given.key_size, given.query_size, given.num_hiddens) <
            0 ||
        layer_read_heads(&core, given.value_size, given.num_heads, given.num_kv_heads) <
            0 ||
        layer_read_options(&core, given.dropout, NULL) < 0 ||
        py_read_flag(given.bias, "bias", &bias) < 0) {
        return -1;
    }
    core.rng = layer_rng(given.rng);
    if (core.rng != NULL && layer_draw_parameters(state, &core, bias) == 0) {
        result = layer_install((layer_object *)self, &core);
    }
    layer_core_clear(&core);
    return result;
}

static PyObject *
multi_head_repr(PyObject *self)
{
    const layer_core *core = &((layer_object *)self)->core;
    const char *bias = layer_has_bias(core) ? "True" : "False";
    PyObject *name = PyType_GetName(Py_TYPE(self)), *result = NULL;
    PyObject *dropout = PyFloat_FromDouble(core->dropout);
    char kv[48] = "";

    if (core->num_kv_heads != core->num_heads) {
        PyOS_snprintf(kv, sizeof kv, ", num_kv_heads=%zd", core->num_kv_heads);
    }
    if (name != NULL && dropout != NULL) {
        result = PyUnicode_FromFormat(
            "%U(key_size=%zd, query_size=%zd, value_size=%zd, num_hiddens=%zd, "
            "num_heads=%zd, dropout=%R, bias=%s%s)",
            name, core->key_size, core->query_size, core->value_size, core->num_hiddens,
            core->num_heads, dropout, bias, kv);
    }
    Py_XDECREF(dropout);
    Py_XDECREF(name);
    return result;
}

PyGetSetDef layer_multi_head_properties[LAYER_PROPERTIES];

PyMethodDef layer_multi_head_methods[LAYER_METHODS];

#define SIZE(NAME, DOC) \
    {#NAME, T_PYSSIZET, offsetof(layer_object, core.NAME), READONLY, DOC}

static PyMemberDef multi_head_members[] = {
    LAYER_MEMBERS,
    SIZE(key_size, "int: features of a key."),
    SIZE(query_size, "int: features of a query."),
    SIZE(value_size, "int: features of a value."),
    SIZE(num_hiddens, "int: features of the output."),
    SIZE(num_heads, "int: heads of the queries."),
    SIZE(num_kv_heads, "int: heads of keys and values."),
    {0},
};

static PyType_Slot multi_head_slots[] = {
    LAYER_SLOTS,
    {Py_tp_doc, (void *)multi_head_doc},
    {Py_tp_new, multi_head_new},
    {Py_tp_init, multi_head_init},
    {Py_tp_repr, multi_head_repr},
    {Py_tp_methods, layer_multi_head_methods},
    {Py_tp_getset, layer_multi_head_properties},
    {Py_tp_members, multi_head_members},
    {0},
};

PyType_Spec layer_multi_head_spec = {
    .name = "attnext.MultiHeadAttention",
    .basicsize = sizeof(layer_object),
    .flags = LAYER_FLAGS,
    .slots = multi_head_slots,
};
