/* kernels_avx2.c -- the kernels of kernels_body.h in the vocabulary of v_avx2.h.
 *
 * The target is set here, for this file alone, so that the build needs no per-file
 * flags. The intrinsics come first: clang would not let the attribute reach into their
 * headers. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

#include "v_avx2.h"

#define KERNELS attn_kernels_avx2
#define KERNELS_NAME "avx2"
#include "kernels_body.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int attn_no_avx2; /* nothing to compile on other machines */
#endif
