/*
 * py_memory.c -- where large arrays and large scratch lie: in the blocks of
 * ../os/memory.h, which are kept for the next call.
 *
 * An array is told so by NumPy's way of choosing an allocator (NEP 49): a capsule that
 * it refers to, and that frees its memory wherever and whenever the array dies. The
 * capsule points to static data, so arrays may outlive the module.
 */
#include "py_run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../os/memory.h"

/* ---- NumPy's view of the blocks -------------------------------------------------- */

static void *
handler_malloc(void *Py_UNUSED(context), size_t bytes)
{
    return attn_memory_take(bytes);
}

static void *
handler_calloc(void *Py_UNUSED(context), size_t count, size_t size)
{
    if (size != 0 && count > SIZE_MAX / size) {
        return NULL;
    }
    void *block = attn_memory_take(count * size);
    return block == NULL ? NULL : memset(block, 0, count * size);
}

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

static PyDataMem_Handler handler = {
    .name = "attnext",
    .version = 1,
    .allocator = {NULL, handler_malloc, handler_calloc, handler_realloc, handler_free},
};

/* ---- arrays and scratch ---------------------------------------------------------- */

/* Does an array of this shape belong into a block? If sizes overflow, the error is
 * NumPy's. */
static bool
is_large(int ndim, const npy_intp *dims)
{
    npy_intp count = PyArray_OverflowMultiplyList((npy_intp *)dims, ndim);
    return count >= (npy_intp)(ATTN_LARGE / sizeof(float));
}

/* Makes NumPy allocate in blocks; returns what it did before, for choose_handler. An
 * allocator that the user chose is left to work: Py_None. */
static PyObject *
choose_blocks(void)
{
    PyObject *capsule = PyDataMem_GetHandler();
    if (capsule != NULL && capsule != PyDataMem_DefaultHandler) {
        Py_DECREF(capsule);
        return Py_NewRef(Py_None);
    }
    Py_XSETREF(capsule, PyCapsule_New(&handler, "mem_handler", NULL));
    PyObject *before = capsule == NULL ? NULL : PyDataMem_SetHandler(capsule);
    Py_XDECREF(capsule);
    return before;
}

/* Takes `before` back. */
static int
choose_handler(PyObject *before)
{
    PyObject *blocks = Py_None;
    if (before != Py_None && (blocks = PyDataMem_SetHandler(before)) != NULL) {
        Py_DECREF(blocks);
    }
    Py_DECREF(before);
    return blocks == NULL ? -1 : 0;
}

PyArrayObject *
py_new_float32(int ndim, const npy_intp *dims)
{
    npy_intp *sizes = (npy_intp *)dims;
    if (attn_memory_limit() == 0 || !is_large(ndim, dims)) {
        return (PyArrayObject *)PyArray_SimpleNew(ndim, sizes, NPY_FLOAT32);
    }
    PyObject *before = choose_blocks();
    if (before == NULL) {
        return NULL;
    }
    PyObject *array = PyArray_SimpleNew(ndim, sizes, NPY_FLOAT32);
    if (choose_handler(before) < 0) {
        Py_CLEAR(array);
    }
    return (PyArrayObject *)array;
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

/* ---- the setting ----------------------------------------------------------------- */

/* What is kept unless the environment says otherwise: four results of 64 MiB. */
static const unsigned long long KEPT_MIB = 256;

int
py_read_memory_limit(void)
{
    const char *wanted = getenv("ATTNEXT_CACHE_MIB");
    unsigned long long mib = KEPT_MIB;
    if (wanted != NULL && *wanted != '\0') {
        char *end;
        errno = 0;
        mib = strtoull(wanted, &end, 10);
        if (errno != 0 || *end != '\0' || strchr(wanted, '-') != NULL ||
            mib > SIZE_MAX >> 20) {
            PyObject *text = PyUnicode_DecodeFSDefault(wanted);
            if (text != NULL) {
                PyErr_Format(PyExc_ImportError,
                             "ATTNEXT_CACHE_MIB=%R: expected a whole number >= 0",
                             text);
                Py_DECREF(text);
            }
            return -1;
        }
    }
    attn_memory_set_limit((size_t)mib << 20);
    return 0;
}
