/*
 * py_exchange.h -- tensors of PyTorch as arrays, and back (py_exchange.c), for py_tensors.c.
 */
#ifndef PY_EXCHANGE_H
#define PY_EXCHANGE_H

#include "py_attnext.h"

int py_exchange_exec(void);

/* Tensors of exactly these types, a tuple, are read by the functions in this capsule;
 * None: by none. records() says whether autograd is on. */
int py_exchange_by(PyObject *types, PyObject *exchange, PyObject *records);

/* Are there such functions? Nothing below is called without. */
bool py_can_exchange(void);

bool py_is_tensor(PyObject *object);

/* What fails in these is no error of the call: whatever is raised is to be cleared. */

/* How many rows a tensor has, (..., rows, features); 0, if C does not read it. */
npy_intp py_rows(PyObject *tensor);

/* Is autograd on, or fails to say so? */
bool py_records(void);

/* Does it want a gradient, or fail to say so? This may run code, a mode of torch's. */
bool py_wants_gradient(PyObject *tensor);

/* Its storage, a new reference; NULL too for a tensor with a minus sign still to come. This
 * may run code, a mode or, in CPython 3.11, the garbage collector. */
PyObject *py_storage(PyObject *tensor);

/* An array of the tensor's memory, which nothing keeps, where all of it lies in this storage
 * of its, which may have been resized, or given back; else NULL. This runs no Python code and
 * makes nothing that the garbage collector knows. */
PyObject *py_tensor_view(PyObject *tensor, PyObject *storage);

/* A tensor of a float32 array's numbers, in its memory or, of few, in memory of its own. */
PyObject *py_as_tensor(PyArrayObject *array);

#endif
