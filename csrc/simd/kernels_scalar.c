/* kernels_scalar.c -- the kernels of kernels_body.h in the vocabulary of v_scalar.h. */
#include "v_scalar.h"

#define KERNELS attn_kernels_scalar
#define KERNELS_NAME "scalar"
#include "kernels_body.h"
