/*
 * py_dlpack.h -- the binary interface of DLPack 1.3, as far as py_tensors.c goes: how C
 * hands tensors from one library to another, and the functions of a type's
 * __dlpack_c_exchange_api__.
 */
#ifndef PY_DLPACK_H
#define PY_DLPACK_H

#include <stdint.h>

enum { DL_MAJOR = 1, DL_CPU = 1 };
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BOOL = 6 };

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

#endif
