/*
 * exchange.c -- tensors of PyTorch as arrays, and arrays as tensors, by the functions of
 * DLPack that a type of tensors has; and calls whose arguments may be tensors: these become
 * arrays of their memory, and what the function makes becomes tensors.
 */
#include "tensors.h"

#include <string.h>

#include "../core/arena.h"

/* ---- DLPack 1.3 ------------------------------------------------------------------ */

/* As far as is needed: how C hands tensors from one library to another, and the functions of
 * a type's __dlpack_c_exchange_api__. */

enum { DL_MAJOR = 1, DL_CPU = 1 };
enum { DL_INT = 0, DL_FLOAT = 2, DL_BOOL = 6 };

typedef struct {
    uint32_t major, minor;
} dl_version;

typedef struct {
    int32_t type, number;
} dl_device;

typedef struct {
    uint8_t kind, bits;
    uint16_t lanes;
} dl_type;

typedef struct {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_type type;
    int64_t *shape, *strides; /* in elements */
    uint64_t offset;          /* in bytes */
} dl_tensor;

typedef struct dl_managed {
    dl_version version;
    void *owner;
    void (*free)(struct dl_managed *);
    uint64_t flags;
    dl_tensor tensor;
} dl_managed;

typedef struct dl_exchange {
    dl_version version;
    const struct dl_exchange *older;
    void (*allocate)(void);
    void (*from_object)(void);
    int (*to_object)(dl_managed *, void **); /* it takes what it is given */
    int (*view)(void *, dl_tensor *);        /* valid until somebody else acts */
    void (*stream)(void);
} dl_exchange;

/* ---- who is read ----------------------------------------------------------------- */

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

/* What was there before, others may be looking at where there is no GIL: there it stays. */
static void
replace(PyObject **kept, PyObject *object)
{
    PyObject *before = *kept;
    *kept = Py_NewRef(object);
#ifdef Py_GIL_DISABLED
    (void)before;
#else
    Py_XDECREF(before);
#endif
}

static const char EXPECTED[] = "a type of tensors that these functions support";

int
py_exchange_by(PyObject *types, PyObject *exchange, PyObject *records)
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
    for (Py_ssize_t i = 0; functions != NULL && i < PyTuple_GET_SIZE(types); i++) {
        PyObject *type = PyTuple_GET_ITEM(types, i);
        PyObject *own = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
        const bool fits = own == exchange && PyType_Check(type);
        Py_XDECREF(own);
        if (!fits) { /* the functions would take its objects for tensors */
            return own == NULL ? -1
                               : py_wrong("kind", "(sOs)", "types", type, EXPECTED);
        }
    }
    replace(&torch.types, types);
    replace(&torch.records, records);
    torch.functions = functions == NULL || functions->view == NULL ? NULL : functions;
    return 0;
}

/* ---- from tensors ---------------------------------------------------------------- */

/* Return an attribute of a tensor or the answer of a method without arguments as 0 or 1; -1:
 * an exception was raised. Takes the reference. */
static int
truth(PyObject *answer)
{
    const int result = answer == NULL ? -1 : answer != Py_False;
    Py_XDECREF(answer);
    return result;
}

static PyObject *
ask(PyObject *object, PyObject *method)
{
    return PyObject_VectorcallMethod(method, &object,
                                     1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
}

int
py_wants_gradient(PyObject *tensor)
{
    return truth(PyObject_GetAttr(tensor, torch.requires_grad));
}

int
py_records(void)
{
    return truth(PyObject_CallNoArgs(torch.records));
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

/* Read a tensor's header, and the dtype of an array of the tensor; false: C does not read
 * this tensor. DLPack answers for a layout or a dtype that it does not know by an exception,
 * which is cleared: this runs no code of the caller. */
static bool
read_header(PyObject *tensor, dl_tensor *x, int *dtype)
{
    *x = (dl_tensor){0};
    if (torch.functions->view(tensor, x) < 0) {
        PyErr_Clear();
        return false;
    }
    if (x->device.type != DL_CPU || x->ndim > NPY_MAXDIMS ||
        (x->ndim > 0 && x->strides == NULL)) {
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

/* Set *storage to a tensor's storage, a new reference. PY_OTHER: C does not read this tensor,
 * or the minus sign of its values is still pending. This may run code: a mode of torch's or,
 * in CPython 3.11, the garbage collector. */
static py_answer
read_storage(PyObject *tensor, PyObject **storage)
{
    dl_tensor x;
    int dtype;
    if (!read_header(tensor, &x, &dtype)) {
        return PY_OTHER;
    }
    const int negative = truth(ask(tensor, torch.is_neg));
    if (negative != 0) {
        return negative < 0 ? PY_RAISED : PY_OTHER;
    }
    *storage = ask(tensor, torch.untyped_storage);
    return *storage == NULL ? PY_RAISED : PY_DONE;
}

/* Set *begin and *bytes to where a storage begins and how large it is. */
static int
read_block(PyObject *storage, uintptr_t *begin, size_t *bytes)
{
    const Py_ssize_t size = PyObject_Size(storage);
    PyObject *address = size < 0 ? NULL : ask(storage, torch.data_ptr);
    *begin = address == NULL ? 0 : (uintptr_t)PyLong_AsSize_t(address);
    *bytes = (size_t)Py_MAX(size, 0);
    Py_XDECREF(address);
    return PyErr_Occurred() ? -1 : 0;
}

/* Set *array to an array of the tensor's memory, which the array does not keep alive. PY_OTHER:
 * not all of that memory is in the storage, which was resized or given back. This runs no
 * Python code and makes nothing that the garbage collector knows. */
static py_answer
view_of_tensor(PyObject *tensor, PyObject *storage, PyObject **array)
{
    npy_intp dims[NPY_MAXDIMS], strides[NPY_MAXDIMS];
    size_t reach = 0;
    dl_tensor x;
    int dtype;
    if (!read_header(tensor, &x, &dtype)) {
        return PY_OTHER;
    }
    const size_t item = x.type.bits / 8;
    bool empty = false;
    for (int i = 0; i < x.ndim; i++) {
        dims[i] = (npy_intp)x.shape[i];
        strides[i] = (npy_intp)x.strides[i] * (npy_intp)item;
        empty = empty || dims[i] == 0;
        reach += (size_t)(dims[i] - 1) *
                 (size_t)strides[i]; /* no overflow: a storage had this size */
    }
    char *data = (char *)x.data + x.offset;
    if (empty) {
        data = (char *)&torch; /* an empty tensor may have no memory */
    } else if (data == NULL) {
        return PY_OTHER; /* nor a storage that says where it is */
    } else {
        uintptr_t begin;
        size_t bytes;
        if (read_block(storage, &begin, &bytes) < 0) {
            return PY_RAISED;
        }
        const size_t skip = (size_t)((uintptr_t)data - begin);
        if (skip > bytes || bytes - skip < item || bytes - skip - item < reach) {
            return PY_OTHER;
        }
    }
    *array = PyArray_New(&PyArray_Type, x.ndim, dims, dtype, strides, data, 0, 0, NULL);
    return *array == NULL ? PY_RAISED : PY_DONE;
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

/* A tensor of a float32 array's numbers, in its memory or, of few, in memory of its own. */
static PyObject *
as_tensor(PyArrayObject *array)
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

/* ---- arguments ------------------------------------------------------------------- */

void
py_clear_tensors(tensor_call *call)
{
    for (int i = 0; i < call->count; i++) {
        tensor_argument *a = &call->arguments[i];
        PyObject *array = a->storage != NULL ? a->plain : NULL;
        /* Whoever has kept the array, in an error's traceback, keeps its memory too. */
        if (array != NULL && Py_REFCNT(array) > 1) {
            PyArray_SetBaseObject((PyArrayObject *)array, Py_NewRef(a->storage));
        }
        Py_XDECREF(a->plain);
        Py_XDECREF(a->storage);
        Py_DECREF(a->given);
        Py_DECREF(a->name);
    }
}

bool
py_add_argument(tensor_call *call, PyObject *name, PyObject *given, bool in_graph)
{
    if (call->count == PY_MOST_TENSORS) {
        return false;
    }
    call->arguments[call->count++] = (tensor_argument){
        .name = Py_NewRef(name), .given = Py_NewRef(given), .in_graph = in_graph};
    return true;
}

bool
py_add_arguments(tensor_call *call, PyObject *dict, bool in_graph)
{
    PyObject *name, *given;
    Py_ssize_t place = 0;
    bool fits = PyDict_CheckExact(dict);
    Py_BEGIN_CRITICAL_SECTION(dict);
    while (fits && PyDict_Next(dict, &place, &name, &given)) {
        fits = py_add_argument(call, name, given, in_graph);
    }
    Py_END_CRITICAL_SECTION();
    return fits;
}

/* Make all arguments what the function reads without running code. What may run code comes
 * first, for CPython 3.11 may collect garbage when it makes an object. */
static py_answer
make_arrays(const attnext_state *state, tensor_call *call)
{
    py_answer answer = PY_DONE;
    for (int i = 0; answer == PY_DONE && i < call->count; i++) {
        tensor_argument *a = &call->arguments[i];
        if (py_is_tensor(a->given)) {
            answer = read_storage(a->given, &a->storage);
        }
    }
    for (int i = 0; answer == PY_DONE && i < call->count; i++) {
        tensor_argument *a = &call->arguments[i];
        if (a->storage != NULL) {
            answer = view_of_tensor(a->given, a->storage, &a->plain);
        } else {
            a->plain = Py_NewRef(a->given);
        }
        if (answer == PY_DONE &&
            (!py_is_ready(state, a->name, a->plain) ||
             (a->in_graph && PyArray_TYPE((PyArrayObject *)a->plain) != NPY_FLOAT32))) {
            answer = PY_OTHER;
        }
    }
    return answer;
}

/* ---- the call -------------------------------------------------------------------- */

py_answer
py_call_on_arrays(const attnext_state *state, PyObject *function, tensor_call *call,
                  PyObject **made)
{
    PyObject *plain[PY_MOST_TENSORS], *names = PyTuple_New(call->count);
    py_answer answer = names == NULL ? PY_RAISED : PY_DONE;
    for (int i = 0; names != NULL && i < call->count; i++) {
        PyTuple_SET_ITEM(names, i, Py_NewRef(call->arguments[i].name));
    }
    if (answer == PY_DONE) {
        answer = make_arrays(state, call);
    }
    if (answer == PY_DONE) {
        for (int i = 0; i < call->count; i++) {
            plain[i] = call->arguments[i].plain;
        }
        *made = PyObject_Vectorcall(function, plain, 0, names);
        answer = *made == NULL ? PY_RAISED : PY_DONE;
    }
    Py_XDECREF(names);
    return answer;
}

PyObject *
py_as_tensors(PyObject *made)
{
    PyObject *result = NULL;
    if (PyArray_CheckExact(made) &&
        PyArray_TYPE((PyArrayObject *)made) != NPY_FLOAT32) {
        py_wrong("kind", "(sOs)", "the result", made, "an array of float32");
    } else if (PyArray_CheckExact(made)) {
        result = as_tensor((PyArrayObject *)made);
    } else if (PyTuple_Check(made)) {
        const Py_ssize_t count = PyTuple_GET_SIZE(made);
        result = PyTuple_New(count);
        for (Py_ssize_t i = 0; result != NULL && i < count; i++) {
            PyObject *item = py_as_tensors(Py_NewRef(PyTuple_GET_ITEM(made, i)));
            if (item == NULL) {
                Py_CLEAR(result);
            } else {
                PyTuple_SET_ITEM(result, i, item);
            }
        }
    } else {
        return made;
    }
    Py_DECREF(made);
    return result;
}
