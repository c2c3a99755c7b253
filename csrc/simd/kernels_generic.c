/* kernels_generic.c -- the kernels of kernels_body.h in the words of v_generic.h. */
#include "v_generic.h"

#define KERNELS attn_kernels_generic
#define KERNELS_NAME "generic"
#include "kernels_body.h"
