/*
 * py_tensor_call.h -- a call whose arguments may be tensors of PyTorch (py_tensor_call.c), for
 * py_tensors.c.
 */
#ifndef PY_TENSOR_CALL_H
#define PY_TENSOR_CALL_H

#include "py_exchange.h"

/* More arguments than any function has. */
enum { PY_MOST_TENSORS = ARG_COUNT };

typedef struct {
    PyObject *name, *given; /* owned */
    PyObject *storage;      /* of a tensor, owned, else NULL */
    PyObject *plain;        /* what the function gets, owned */
    bool in_graph;          /* a caller's tensor to which a gradient may flow */
} tensor_argument;

typedef struct {
    tensor_argument arguments[PY_MOST_TENSORS];
    int count;
} tensor_call;

/* false: it is one too many. */
bool py_add_argument(tensor_call *call, PyObject *name, PyObject *given, bool in_graph);

/* Adds what is in the dict; false: it is none, or too much. */
bool py_add_arguments(tensor_call *call, PyObject *dict, bool in_graph);

/* What the function makes of them, or NULL. */
PyObject *py_call_on_arrays(const attnext_state *state, PyObject *function,
                            tensor_call *call);

/* Arrays as tensors, in tuples too, which come plain; a new reference for this one. */
PyObject *py_as_tensors(PyObject *made);

/* The answer, or, after an error of the call or of what was tried, NotImplemented. */
PyObject *py_or_not(PyObject *answer);

void py_clear_tensors(tensor_call *call);

#endif
