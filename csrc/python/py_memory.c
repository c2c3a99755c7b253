/*
 * py_memory.c -- where large arrays and large scratch lie: in the blocks of
 * ../os/memory.h, which are kept for the next call.
 *
 * An array is told so as NumPy tells its own (NEP 49): by a capsule that it refers to,
 * and that frees its memory wherever and whenever the array dies. The capsule points to
 * static data, so arrays may outlive the module.
 */
#include "py_run.h"

#include <string.h>

#include "../os/memory.h"

/* ---- NumPy's view of the blocks -------------------------------------------------- */

static void
handler_free(void *Py_UNUSED(context), void *block, size_t Py_UNUSED(bytes))
{
    attn_memory_give(block);
}

/* a.resize() */
static void *
handler_realloc(void *Py_UNUSED(context), void *block, size_t bytes)
{
    void *moved = attn_memory_take(bytes);
    if (moved != NULL && block != NULL) {
        memcpy(moved, block, Py_MIN(bytes, attn_memory_size(block)));
        attn_memory_give(block);
    }
    return moved;
}

/* The domain in which NumPy tells tracemalloc of the memory of arrays. */
enum { NUMPY_TRACES = 389047 };

static PyDataMem_Handler handler = {
    .name = "attnext",
    .version = 1,
    .allocator = {.realloc = handler_realloc, .free = handler_free}, /* never current */
};

/* ---- arrays and scratch ---------------------------------------------------------- */

/* How many bytes an array of this shape has; 0: its sizes overflow. */
static size_t
bytes_of(int ndim, const npy_intp *dims)
{
    npy_intp count = PyArray_OverflowMultiplyList((npy_intp *)dims, ndim);
    bool fits = count >= 0 && count <= NPY_MAX_INTP / (npy_intp)sizeof(float);
    return fits ? (size_t)count * sizeof(float) : 0;
}

/* Does NumPy allocate as it does by itself? An allocator that the user chose is left to
 * work. */
static bool
is_numpys_own(void)
{
    PyObject *now = PyDataMem_GetHandler();
    if (now == NULL) {
        PyErr_Clear(); /* the array that NumPy makes says so */
    }
    Py_XDECREF(now);
    return now == PyDataMem_DefaultHandler;
}

/* An array over a block that it owns, as if NumPy had allocated it; NULL: there is no
 * memory, and nothing is raised. */
static PyArrayObject *
new_in_block(int ndim, const npy_intp *dims, size_t bytes)
{
    PyObject *capsule = PyCapsule_New(&handler, "mem_handler", NULL), *array = NULL;
    void *block = capsule == NULL ? NULL : attn_memory_take(bytes);
    if (block != NULL) {
        array = PyArray_New(&PyArray_Type, ndim, (npy_intp *)dims, NPY_FLOAT32, NULL,
                            block, 0, NPY_ARRAY_CARRAY, NULL);
    }
    if (array == NULL) {
        PyErr_Clear();
        attn_memory_give(block);
        Py_XDECREF(capsule);
        return NULL;
    }
    PyArray_ENABLEFLAGS((PyArrayObject *)array, NPY_ARRAY_OWNDATA);
    ((PyArrayObject_fields *)array)->mem_handler = capsule;
    PyTraceMalloc_Track(NUMPY_TRACES, (uintptr_t)block, bytes);
    return (PyArrayObject *)array;
}

/* Without the garbage collector, which CPython 3.11 may start whenever an object is made
 * that it knows, a tuple or a context's variable: neither an array nor a capsule is one.
 * So no finaliser runs while the inputs of a call wait for its results. */
PyArrayObject *
py_new_float32(int ndim, const npy_intp *dims)
{
    size_t bytes = attn_memory_limit() == 0 ? 0 : bytes_of(ndim, dims);
    PyArrayObject *array = NULL;
    if (bytes >= ATTN_LARGE && is_numpys_own()) {
        array = new_in_block(ndim, dims, bytes);
    }
    if (array == NULL) { /* and where there is no memory NumPy says how much it was */
        array = (PyArrayObject *)PyArray_SimpleNew(ndim, (npy_intp *)dims, NPY_FLOAT32);
    }
    return array;
}

void *
py_take_scratch(size_t bytes)
{
    return bytes < ATTN_LARGE ? PyMem_RawMalloc(bytes) : attn_memory_take(bytes);
}

void
py_give_scratch(void *scratch, size_t bytes)
{
    if (bytes < ATTN_LARGE) {
        PyMem_RawFree(scratch);
    } else {
        attn_memory_give(scratch);
    }
}
