/*
 * py_layer_additive.c -- the type AdditiveAttention: its constructor and its face.
 */
#include "py_layer.h"

#include <structmember.h>

PyDoc_STRVAR(additive_doc,
"AdditiveAttention(key_size, query_size, num_hiddens, dropout=0.0, *, bias=False,\n"
"rng=None)\n"
"--\n\n"
"Additive (Bahdanau) attention with parameters of its own.\n"
"\n"
"Parameters\n"
"----------\n"
"key_size : int\n"
"    Features of a key, Dk >= 0.\n"
"query_size : int\n"
"    Features of a query, Dq >= 0.\n"
"num_hiddens : int\n"
"    Hidden units, H >= 1.\n"
"dropout : float, optional\n"
"    Probability, 0 <= dropout < 1, that an attention weight is dropped in training.\n"
"bias : bool, optional\n"
"    Whether the hidden units have a bias, ``b_h``.\n"
"rng : None, int, numpy.random.Generator, ..., optional\n"
"    Seed of the initial parameters and of dropout: anything\n"
"    `numpy.random.default_rng` takes. A Generator is used itself, not copied.\n"
"\n"
"Attributes\n"
"----------\n"
"W_q : ndarray, float32, shape (H, Dq)\n"
"    Projection of the queries. This and the other parameters are the live arrays;\n"
"    what is assigned to one is converted to float32 and copied into it.\n"
"W_k : ndarray, float32, shape (H, Dk)\n"
"    Projection of the keys.\n"
"w_v : ndarray, float32, shape (H,)\n"
"    Weight of each hidden unit in the score.\n"
"b_h : ndarray, float32, shape (H,), or None\n"
"    Bias of the hidden units.\n"
"attention_weights : ndarray, float32, shape (..., M, N), or None\n"
"    The weights of the last call, before dropout.\n"
"context : Context or None\n"
"    What the last call saved for `backward`.\n"
"grads : dict\n"
"    The gradient of each parameter, added up since the last `zero_grad`.\n"
"training : bool\n"
"    Whether dropout acts; True at first.\n"
"key_size, query_size, num_hiddens, dropout\n"
"    As given.\n"
"\n"
"See Also\n"
"--------\n"
"DotProductAttention : Attention without parameters.\n"
"additive_attention : The same as a function of arrays.\n"
"Memory : Keys and values that stay while queries come step by step.\n"
"\n"
"Notes\n"
"-----\n"
"``score(q, k) = w_v . tanh(W_q q + W_k k + b_h)``, and the output is the average of\n"
"the values by ``softmax(score)`` (Bahdanau, Cho and Bengio 2015, \"Neural machine\n"
"translation by jointly learning to align and translate\", appendix A.1.2). The order\n"
"of the arguments is that of *Dive into Deep Learning*, 2nd ed. (zh) 10.3, the names\n"
"and the shapes also those of 1.0 (en) 11.3.\n"
"\n"
"The parameters are drawn as torch.nn.Linear draws its own, uniformly between\n"
"-1/sqrt(n) and 1/sqrt(n) with n inputs of the layer: W_q and b_h (n = query_size),\n"
"W_k (key_size), w_v (num_hiddens). They are ``rng.uniform(-bound, bound, shape)`` as\n"
"float32, in the order W_q, W_k, w_v, b_h. Each call in training with dropout then\n"
"draws one seed, ``rng.integers(0, 2**64, dtype=np.uint64)``.\n"
"\n"
"Objects can be pickled and copied. A copy has parameters and gradients of its own,\n"
"and the attributes of a subclass; the generator is copied by pickle and\n"
"`copy.deepcopy` and shared by `copy.copy`. What the last call left, `context` and\n"
"`attention_weights`, is not copied.\n"
"\n"
"Examples\n"
"--------\n"
"The toy example of the book: all keys are equal, so the output is the mean of the\n"
"valid values, whatever the parameters.\n"
"\n"
">>> import numpy as np\n"
">>> from attnext import AdditiveAttention\n"
">>> attn = AdditiveAttention(key_size=2, query_size=20, num_hiddens=8, dropout=0.1)\n"
">>> attn.eval()\n"
"AdditiveAttention(key_size=2, query_size=20, num_hiddens=8, dropout=0.1, bias=False)\n"
">>> queries = np.random.default_rng(0).normal(size=(2, 1, 20))\n"
">>> keys = np.ones((2, 10, 2))\n"
">>> values = np.arange(40).reshape(1, 10, 4).repeat(2, axis=0)\n"
">>> attn(queries, keys, values, [2, 6])[:, 0].round(3)\n"
"array([[ 2.,  3.,  4.,  5.],\n"
"       [10., 11., 12., 13.]], dtype=float32)\n");

static PyObject *
additive_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    return layer_new(type, SCORE_additive);
}

static int
additive_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key_size", "query_size", "num_hiddens", "dropout",
                            "bias",     "rng",        NULL};
    PyObject *key_size, *query_size, *num_hiddens;
    PyObject *dropout = NULL, *has_bias = Py_False, *rng = NULL;
    bool bias;
    int result = -1;
    const attnext_state *state = py_state_of_type(Py_TYPE(self));
    layer_core core = {.score = ((layer_object *)self)->core.score, .training = true};

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|O$OO:AdditiveAttention", names,
                                     &key_size, &query_size, &num_hiddens, &dropout,
                                     &has_bias, &rng)) {
        return -1;
    }
    if (layer_read_sizes(&core, key_size, query_size, num_hiddens) < 0 ||
        layer_read_options(&core, dropout, NULL) < 0 ||
        py_read_flag(has_bias, "bias", &bias) < 0) {
        return -1;
    }
    core.rng = layer_rng(rng);
    if (core.rng != NULL && layer_draw_parameters(state, &core, bias) == 0) {
        result = layer_install((layer_object *)self, &core);
    }
    layer_core_clear(&core);
    return result;
}

static PyObject *
additive_repr(PyObject *self)
{
    const layer_core *core = &((layer_object *)self)->core;
    const char *bias = layer_has_bias(core) ? "True" : "False";
    PyObject *name = PyType_GetName(Py_TYPE(self)), *result = NULL;
    PyObject *dropout = PyFloat_FromDouble(core->dropout);

    if (name != NULL && dropout != NULL) {
        result = PyUnicode_FromFormat(
            "%U(key_size=%zd, query_size=%zd, num_hiddens=%zd, dropout=%R, bias=%s)",
            name, core->key_size, core->query_size, core->num_hiddens, dropout, bias);
    }
    Py_XDECREF(dropout);
    Py_XDECREF(name);
    return result;
}

PyGetSetDef layer_additive_properties[LAYER_PROPERTIES];

PyMethodDef layer_additive_methods[LAYER_METHODS];

static PyMemberDef additive_members[] = {
    LAYER_MEMBERS,
    {"key_size", T_PYSSIZET, offsetof(layer_object, core.key_size), READONLY,
     "int: features of a key."},
    {"query_size", T_PYSSIZET, offsetof(layer_object, core.query_size), READONLY,
     "int: features of a query."},
    {"num_hiddens", T_PYSSIZET, offsetof(layer_object, core.num_hiddens), READONLY,
     "int: hidden units."},
    {0},
};

static PyType_Slot additive_slots[] = {
    LAYER_SLOTS,
    {Py_tp_doc, (void *)additive_doc},
    {Py_tp_new, additive_new},
    {Py_tp_init, additive_init},
    {Py_tp_repr, additive_repr},
    {Py_tp_methods, layer_additive_methods},
    {Py_tp_getset, layer_additive_properties},
    {Py_tp_members, additive_members},
    {0},
};

PyType_Spec layer_additive_spec = {
    .name = "attnext.AdditiveAttention",
    .basicsize = sizeof(layer_object),
    .flags = LAYER_FLAGS,
    .slots = additive_slots,
};
