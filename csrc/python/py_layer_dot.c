/*
 * py_layer_dot.c -- the type DotProductAttention: its constructor and its face.
 */
#include "py_layer.h"

#include <structmember.h>

PyDoc_STRVAR(dot_doc,
"DotProductAttention(dropout=0.0, *, scale=None, rng=None)\n"
"--\n\n"
"Scaled dot-product attention.\n"
"\n"
"Parameters\n"
"----------\n"
"dropout : float, optional\n"
"    Probability, 0 <= dropout < 1, that an attention weight is dropped in training.\n"
"scale : float, optional\n"
"    What the dot products are multiplied by, finite; ``1 / sqrt(D)`` by default,\n"
"    with D the features of a query. That of a call takes its place.\n"
"rng : None, int, numpy.random.Generator, ..., optional\n"
"    Seed of dropout: anything `numpy.random.default_rng` takes. A Generator is used\n"
"    itself, not copied.\n"
"\n"
"Attributes\n"
"----------\n"
"attention_weights : ndarray, float32, shape (..., M, N), or None\n"
"    The weights of the last call, before dropout.\n"
"context : Context or None\n"
"    What the last call saved for `backward`.\n"
"grads : dict\n"
"    Empty: there are no parameters. It is here, as `parameters`, `zero_grad` and the\n"
"    state dict are, so that code for AdditiveAttention runs on this too.\n"
"training : bool\n"
"    Whether dropout acts; True at first.\n"
"dropout, scale\n"
"    As given.\n"
"\n"
"See Also\n"
"--------\n"
"AdditiveAttention : Attention for queries and keys of different sizes.\n"
"dot_product_attention : The same as a function of arrays.\n"
"Memory : Keys and values that stay while queries come step by step.\n"
"\n"
"Notes\n"
"-----\n"
"``output = softmax(scale * queries @ keys^T) @ values``, the softmax over the keys\n"
"that take part (Vaswani et al. 2017, \"Attention is all you need\", equation 1).\n"
"Names and shapes are those of *Dive into Deep Learning*: 1.0 (en) 11.3, 2nd ed. (zh)\n"
"10.3.\n"
"\n"
"Each call in training with dropout draws one seed from the generator,\n"
"``rng.integers(0, 2**64, dtype=np.uint64)``.\n"
"\n"
"Objects can be pickled and copied, with the attributes of a subclass; the generator\n"
"is copied by pickle and `copy.deepcopy` and shared by `copy.copy`. What the last\n"
"call left, `context` and `attention_weights`, is not copied.\n"
"\n"
"Examples\n"
"--------\n"
"The toy example of the book: all keys are equal, so the output is the mean of the\n"
"valid values.\n"
"\n"
">>> import numpy as np\n"
">>> from attnext import DotProductAttention\n"
">>> attn = DotProductAttention(dropout=0.5)\n"
">>> attn.eval()\n"
"DotProductAttention(dropout=0.5)\n"
">>> queries = np.random.default_rng(0).normal(size=(2, 1, 2))\n"
">>> keys = np.ones((2, 10, 2))\n"
">>> values = np.arange(40).reshape(1, 10, 4).repeat(2, axis=0)\n"
">>> attn(queries, keys, values, [2, 6])[:, 0].round(3)\n"
"array([[ 2.,  3.,  4.,  5.],\n"
"       [10., 11., 12., 13.]], dtype=float32)\n");

static PyObject *
dot_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    return layer_new(type, SCORE_dot);
}

static int
dot_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"dropout", "scale", "rng", NULL};
    PyObject *dropout = NULL, *scale = NULL, *rng = NULL;
    int result = -1;
    layer_core core = {.score = ((layer_object *)self)->core.score, .training = true};

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O$OO:DotProductAttention", names,
                                     &dropout, &scale, &rng)) {
        return -1;
    }
    if (layer_read_options(&core, dropout, scale) < 0) {
        return -1;
    }
    core.grads = PyDict_New();
    core.rng = core.grads == NULL ? NULL : layer_rng(rng);
    if (core.rng != NULL) {
        result = layer_install((layer_object *)self, &core);
    }
    layer_core_clear(&core);
    return result;
}

static PyObject *
dot_get_scale(PyObject *self, void *Py_UNUSED(closure))
{
    const layer_core *core = &((layer_object *)self)->core;
    return core->has_scale ? PyFloat_FromDouble(core->scale) : Py_NewRef(Py_None);
}

static PyObject *
dot_repr(PyObject *self)
{
    const layer_core *core = &((layer_object *)self)->core;
    PyObject *name = PyType_GetName(Py_TYPE(self)), *result = NULL;
    PyObject *dropout = PyFloat_FromDouble(core->dropout);
    PyObject *scale = dot_get_scale(self, NULL);

    if (name != NULL && dropout != NULL && scale != NULL) {
        result = core->has_scale
                     ? PyUnicode_FromFormat("%U(dropout=%R, scale=%R)", name, dropout,
                                            scale)
                     : PyUnicode_FromFormat("%U(dropout=%R)", name, dropout);
    }
    Py_XDECREF(scale);
    Py_XDECREF(dropout);
    Py_XDECREF(name);
    return result;
}

PyGetSetDef layer_dot_properties[LAYER_PROPERTIES] = {
    {"scale", dot_get_scale, NULL,
     "float or None: what dot products are multiplied by; None: 1 / sqrt(D).", NULL},
};

PyMethodDef layer_dot_methods[LAYER_METHODS];

static PyMemberDef dot_members[] = {
    LAYER_MEMBERS,
    {0},
};

static PyType_Slot dot_slots[] = {
    LAYER_SLOTS,
    {Py_tp_doc, (void *)dot_doc},
    {Py_tp_new, dot_new},
    {Py_tp_init, dot_init},
    {Py_tp_repr, dot_repr},
    {Py_tp_methods, layer_dot_methods},
    {Py_tp_getset, layer_dot_properties},
    {Py_tp_members, dot_members},
    {0},
};

PyType_Spec layer_dot_spec = {
    .name = "attnext.DotProductAttention",
    .basicsize = sizeof(layer_object),
    .flags = LAYER_FLAGS,
    .slots = dot_slots,
};
