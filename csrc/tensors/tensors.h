/*
 * tensors.h -- tensors of PyTorch, and calls with some among their arguments (exchange.c), for
 * tensors.c; and what the module has of these. The functions behind the door know of none:
 * they are called with arrays.
 */
#ifndef TENSORS_H
#define TENSORS_H

#include "../python/py_attnext.h"

/* tensors.c: adds the functions for attnext.torch that call others with tensors. */
int py_tensors_exec(PyObject *module);

/* Tensors of exactly these types, a tuple, are read by the functions in this capsule;
 * None: by none. records() says whether autograd is on. */
int py_exchange_by(PyObject *types, PyObject *exchange, PyObject *records);

/* Are there such functions? Nothing below is called without. */
bool py_can_exchange(void);

bool py_is_tensor(PyObject *object);

/* How a step of a call ended. PY_RAISED: an exception is set, and the caller of the call gets
 * it. PY_OTHER: none is set, and C does not serve this call: attnext/torch/tensors.py does. */
typedef enum { PY_RAISED = -1, PY_OTHER, PY_DONE } py_answer;

/* Return how many rows a tensor (..., rows, features) has; 0 if C does not read it. */
npy_intp py_rows(PyObject *tensor);

/* Return 1 if autograd is on, else 0; -1: an exception was raised. */
int py_records(void);

/* Return 1 if a tensor requires a gradient, else 0; -1: an exception was raised. This may run
 * code, a mode of torch's. */
int py_wants_gradient(PyObject *tensor);

/* ---- calls with tensors ---------------------------------------------------------- */

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

/* Set *made to what the function returns for these arguments. */
py_answer py_call_on_arrays(const attnext_state *state, PyObject *function,
                            tensor_call *call, PyObject **made);

/* Return arrays as tensors, those in tuples too, in plain tuples. Takes the reference; NULL: an
 * exception was raised. */
PyObject *py_as_tensors(PyObject *made);

void py_clear_tensors(tensor_call *call);

#endif
