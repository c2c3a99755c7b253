/* kernels_wasm.c -- the kernels of kernels_body.h in the vocabulary of v_wasm.h. A module
 * with SIMD128 in one place is refused whole where there is none, so that it is compiled
 * for all of it (-msimd128) or nowhere. */
#if defined(__wasm_simd128__)
#include "v_wasm.h"

#define KERNELS attn_kernels_wasm
#define KERNELS_NAME "wasm"
#include "kernels_body.h"
#else
typedef int attn_no_wasm; /* nothing to compile on other machines */
#endif
