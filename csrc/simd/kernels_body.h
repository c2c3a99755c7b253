/*
 * kernels_body.h -- every kernel, written once in the vocabulary of v_*.h.
 *
 * A template: kernels_<set>.c sets the target, includes a vocabulary, defines
 *     KERNELS        the name of the table to define, declared in kernels.h
 *     KERNELS_NAME   its string
 * and includes this file. What each kernel promises stands in kernels.h. No intrinsics
 * and no `#if` on an instruction set from here on. Tested on scalar, generic, AVX2 and
 * AVX-512 (all sizes around each vector length, bit for bit), and under emulation on
 * AArch64 (generic) and as WebAssembly.
 */
#include "kernels.h"

#include <math.h>
#include <stddef.h>

/* Loops over registers must be unrolled, or the registers become memory. A vocabulary may
 * decide otherwise; UNROLL_LANES is for loops over all vectors of up to 32 lanes. */
#if defined(UNROLL)
#elif defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

#if !defined(UNROLL_LANES)
#define UNROLL_LANES UNROLL
#endif

/* How many of a vector's lanes are left when n elements are: 0..VLEN. */
V_FN int
lanes_left(int64_t n)
{
    return n >= VLEN ? VLEN : n > 0 ? (int)n : 0;
}

#include "kernels_math.h"
#include "kernels_live.h"
#include "kernels_rows.h"
#include "kernels_query.h"
#include "kernels_matmul.h"
#include "kernels_difference.h"
#include "kernels_layout.h"
#include "kernels_softmax.h"
#include "kernels_softcap.h"
#include "kernels_softmax_short.h"
#include "kernels_softmax_rows.h"
#include "kernels_additive.h"
#include "kernels_additive_backward.h"
#include "kernels_additive_query.h"
#include "kernels_random.h"

const attn_kernels KERNELS = {
    .name = KERNELS_NAME,
    .lanes = FORWARD_LANES,
    .panel = TILE_VECTORS * VLEN > 16 ? TILE_VECTORS * VLEN : 16,
    .matmul = matmul,
    .pool = pool,
    .matmul_live = matmul_live,
    .distance = distance,
    .difference_lanes = difference_lanes,
    .difference_rows = difference_rows,
    .outer = outer_query,
    .pack = pack,
    .unpack = unpack,
    .live_bytes = live_bytes,
    .live_floats = live_floats,
    .softmax_tile = softmax_tile,
    .prob_tile = prob_tile,
    .add_tile = add_tile,
    .softcap = softcap,
    .scale_tile = scale_tile,
    .dot_tile = dot_tile,
    .dscore_tile = dscore_tile,
    .keep_tile = keep_tile,
    .softmax_rows = softmax_rows,
    .softmax_rows_backward = softmax_rows_backward,
    .dot_row = dot_row,
    .absmax_row = absmax_row,
    .exp_form = exp_form,
    .tanh_form = tanh_form,
    .negate_absmax = negate_absmax,
    .additive_tile = additive_tile,
    .additive_tile_backward = additive_tile_backward,
    .philox = philox,
};
