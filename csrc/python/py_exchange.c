/*
 * py_exchange.c -- tensors of PyTorch as arrays, and arrays as tensors, by the functions of
 * DLPack that a type of tensors has (py_dlpack.h).
 */
#include "py_exchange.h"

#include "../core/arena.h"
#include "py_dlpack.h"

#include <string.h>

/* ---- who is read ------------------------------------------------------------------ */

/* Once a process, as PyTorch itself is. */
static struct {
    const dl_exchange *functions; /* NULL: there are none */
    PyObject *types;              /* a tuple */
    PyObject *records;            /* is autograd on? */
    PyObject *requires_grad, *is_neg, *untyped_storage, *data_ptr;
} torch;

bool
py_is_tensor(PyObject *object)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(torch.types); i++) {
        if (Py_IS_TYPE(object, (PyTypeObject *)PyTuple_GET_ITEM(torch.types, i))) {
            return true;
        }
    }
    return false;
}

bool
py_can_exchange(void)
{
    return torch.functions != NULL;
}

int
py_exchange_by(PyObject *types, PyObject *exchange, PyObject *records)
{
    const dl_exchange *functions = NULL;
    if (exchange != Py_None) {
        functions = PyCapsule_GetPointer(exchange, "dlpack_exchange_api");
        if (functions == NULL) {
            return -1;
        }
    }
    while (functions != NULL && functions->version.major > DL_MAJOR) {
        functions = functions->older;
    }
    Py_XSETREF(torch.types, Py_NewRef(types));
    Py_XSETREF(torch.records, Py_NewRef(records));
    torch.functions = functions == NULL || functions->view == NULL ? NULL : functions;
    return 0;
}

int
py_exchange_exec(void)
{
    const struct {
        PyObject **name;
        const char *text;
    } names[] = {{&torch.requires_grad, "requires_grad"},
                 {&torch.is_neg, "is_neg"},
                 {&torch.untyped_storage, "untyped_storage"},
                 {&torch.data_ptr, "data_ptr"}};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(names); i++) {
        if (*names[i].name == NULL &&
            (*names[i].name = PyUnicode_InternFromString(names[i].text)) == NULL) {
            return -1;
        }
    }
    return 0;
}

/* ---- from tensors ---------------------------------------------------------------- */

static PyObject *
ask(PyObject *object, PyObject *method)
{
    return PyObject_VectorcallMethod(method, &object,
                                     1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
}

/* Is the answer False? Takes its reference. */
static bool
is_no(PyObject *answer)
{
    Py_XDECREF(answer);
    return answer == Py_False;
}

bool
py_wants_gradient(PyObject *tensor)
{
    return !is_no(PyObject_GetAttr(tensor, torch.requires_grad));
}

bool
py_records(void)
{
    return !is_no(PyObject_CallNoArgs(torch.records));
}

/* Where a storage begins; false: nobody says. */
static bool
read_address(PyObject *answer, size_t *address)
{
    *address = answer == NULL || !PyLong_CheckExact(answer) ? (size_t)-1
                                                            : PyLong_AsSize_t(answer);
    Py_XDECREF(answer);
    return *address != (size_t)-1;
}

static int
dtype_of(dl_type type)
{
    if (type.lanes != 1) {
        return NPY_NOTYPE;
    }
    switch (type.kind << 8 | type.bits) {
    case DL_FLOAT << 8 | 32:
        return NPY_FLOAT32;
    case DL_INT << 8 | 64:
        return NPY_INT64;
    case DL_INT << 8 | 32:
        return NPY_INT32;
    case DL_BOOL << 8 | 8:
        return NPY_BOOL;
    default:
        return NPY_NOTYPE;
    }
}

/* Its header, and the dtype of an array of it; false: it is none that C reads. */
static bool
read_header(PyObject *tensor, dl_tensor *x, int *dtype)
{
    *x = (dl_tensor){0};
    if (torch.functions->view(tensor, x) < 0 || x->device.type != DL_CPU ||
        x->ndim > NPY_MAXDIMS || (x->ndim > 0 && x->strides == NULL)) {
        return false;
    }
    *dtype = dtype_of(x->type);
    return *dtype != NPY_NOTYPE;
}

npy_intp
py_rows(PyObject *tensor)
{
    dl_tensor x;
    int dtype;
    return read_header(tensor, &x, &dtype) && x.ndim >= 2 ? x.shape[x.ndim - 2] : 0;
}

PyObject *
py_storage(PyObject *tensor)
{
    return is_no(ask(tensor, torch.is_neg)) ? ask(tensor, torch.untyped_storage) : NULL;
}

PyObject *
py_tensor_view(PyObject *tensor, PyObject *storage)
{
    npy_intp dims[NPY_MAXDIMS], strides[NPY_MAXDIMS];
    size_t begin, reach = 0;
    dl_tensor x;
    int dtype;
    const Py_ssize_t size = PyObject_Size(storage);
    if (size < 0 || !read_address(ask(storage, torch.data_ptr), &begin) ||
        !read_header(tensor, &x, &dtype)) {
        return NULL;
    }
    const size_t item = x.type.bits / 8, bytes = (size_t)size;
    bool empty = false;
    for (int i = 0; i < x.ndim; i++) {
        dims[i] = (npy_intp)x.shape[i];
        strides[i] = (npy_intp)x.strides[i] * (npy_intp)item;
        empty = empty || dims[i] == 0;
        reach += (size_t)(dims[i] - 1) *
                 (size_t)strides[i]; /* it was a storage's once */
    }
    char *data = (char *)x.data + x.offset;
    const size_t skip = (size_t)((uintptr_t)data - begin);
    if (empty) {
        data = (char *)&torch; /* there may be none */
    } else if (data == NULL || skip > bytes || bytes - skip < item ||
               bytes - skip - item < reach) {
        return NULL;
    }
    return PyArray_New(&PyArray_Type, x.ndim, dims, dtype, strides, data, 0, 0, NULL);
}

/* ---- to tensors ------------------------------------------------------------------ */

/* So many bytes are copied rather than kept: freed without the GIL, which a thread of
 * autograd's would have to wait for, and without an array. */
enum { SMALL = 4096 };

typedef struct {
    dl_managed managed; /* first: who frees it gets its address */
    int64_t sizes[];    /* and behind it small numbers */
} exported;

static void
free_copy(dl_managed *managed)
{
    PyMem_RawFree(managed);
}

static void
free_array(dl_managed *managed)
{
    if (Py_IsInitialized()) {
        PyGILState_STATE gil = PyGILState_Ensure();
        Py_DECREF((PyObject *)managed->owner);
        PyGILState_Release(gil);
    }
    PyMem_RawFree(managed);
}

PyObject *
py_as_tensor(PyArrayObject *array)
{
    const int ndim = PyArray_NDIM(array);
    const size_t bytes = (size_t)PyArray_NBYTES(array);
    const size_t head = sizeof(exported) + 2 * (size_t)ndim * sizeof(int64_t);
    const bool small = bytes <= SMALL;
    exported *x = PyMem_RawMalloc(head + (small ? bytes + ATTN_ALIGN : 0));
    void *tensor = NULL;
    if (x == NULL) {
        return PyErr_NoMemory();
    }
    char *data = PyArray_BYTES(array);
    if (small) {
        char *behind = (char *)x + head;
        behind += -(uintptr_t)behind % ATTN_ALIGN;
        data = memcpy(behind, data, bytes);
    }
    x->managed = (dl_managed){
        .version = {DL_MAJOR, 0},
        .owner = small ? NULL : Py_NewRef(array),
        .free = small ? free_copy : free_array,
        .tensor = {.data = data,
                   .device = {DL_CPU, 0},
                   .ndim = ndim,
                   .type = {DL_FLOAT, 32, 1},
                   .shape = x->sizes,
                   .strides = x->sizes + ndim},
    };
    for (int i = 0; i < ndim; i++) {
        x->sizes[i] = PyArray_DIM(array, i);
        x->sizes[ndim + i] = PyArray_STRIDE(array, i) / (npy_intp)sizeof(float);
    }
    return torch.functions->to_object(&x->managed, &tensor) < 0 ? NULL : tensor;
}
