/*
 * py_merge.h -- the arguments of merge_attention and its backward: outputs and lses of
 * the parts, each a list of arrays or one array that stacks them (py_merge_parts.c).
 */
#ifndef PY_MERGE_H
#define PY_MERGE_H

#include "py_attnext.h"

/* One argument, outputs or lses: an array for each part, or one that stacks them along
 * its first axis. All owned; the shape of a part is noted once. */
typedef struct {
    const char *name;
    Py_ssize_t count;
    bool stacked;
    PyArrayObject *
        *read; /* [count], or one; NULL, or with arrays that are, until read */
    int ndim;  /* of a part */
    npy_intp dims[PY_MAX_AXES];
} merge_parts;

typedef struct {
    merge_parts outputs, lses; /* (..., M, Dv), (..., M) each */
    npy_intp rows, Dv;
} merge_inputs;

/* To be called before anything else, and at the end whatever happened. */
void merge_inputs_init(merge_inputs *in);
void merge_inputs_clear(merge_inputs *in);

int merge_inputs_read(merge_inputs *in, PyObject *outputs, PyObject *lses);

/* The address of each of `count` parts of `size` numbers that lie behind each other; of
 * each of the parts. */
void merge_point_into(float **pointers, PyArrayObject *stacked, Py_ssize_t count,
                      npy_intp size);
void merge_point_to_parts(float **pointers, const merge_parts *parts, npy_intp size);

#endif
