/*
 * kernels.h -- the table of kernels: all that runs in vector registers, one contract
 * each.
 *
 * A block is up to ATTN_LANES queries of one batch entry; a tile is one block against
 * up to ATTN_KEYS keys. Tiles are stored [key][lane], operands of a block
 * [feature][lane], always with `lanes` (a multiple of 16, or 1) floats a row: lanes are
 * queries, and lanes never mix. That is why every instruction set gives the same bits
 * (docs in v_scalar.h): each lane runs one chain of operations, in an order that the
 * contracts below fix:
 *     a sum over t adds terms t = 0, 1, 2, ... to a fresh accumulator with v_fma;
 *     a sum that must run across lanes uses 16 canonical lanes and one tree (v_sum16).
 *
 * A block may also have a single lane (lanes = 1): one query, its tile a row of keys.
 * It gives the bits that the query's lane gives among others (kernels_query.h).
 *
 * live: who takes part in a tile. Bit l of live[key] is set iff lane l attends to that
 * key; NULL means all do. What a dead pair holds is never used, be it NaN.
 */
#ifndef ATTN_KERNELS_H
#define ATTN_KERNELS_H

#include <float.h>
#include <stdbool.h>
#include <stdint.h>

#include "float_rules.h"

/* Where gcc keeps to the letter of C11, as -std=c11 has it, some targets compute floats
 * in double: s390x, 32-bit x86. Other bits than everywhere, and in silence. */
_Static_assert(FLT_EVAL_METHOD == 0,
               "floats are computed in a wider type: compile with "
               "-fexcess-precision=fast, or -mfpmath=sse");

enum {
    ATTN_LANES = 64, /* most queries of a block; live words have 64 bits */
    ATTN_KEYS = 128, /* keys of a tile; tiles start at multiples of it from key 0 */
    ATTN_CHUNK =
        256,         /* longest chain of a sum: longer ones are summed chunk by chunk */
    ATTN_POOL = 64,  /* keys that are pooled as one sum */
    ATTN_UNITS = 64, /* hidden units whose terms are one sum */
    ATTN_GROUP = 16, /* keys whose softmax is one sum, of four chains */
};

/* What becomes of C in a product: it is set; added to; or set as if 0 had been added to, of
 * which only the sign of 0 tells. */
typedef enum { ATTN_SET, ATTN_ADD, ATTN_BEGIN } attn_into;

/* How tanh(b - a) is computed, by the sizes |a|, |b|: a is the query's pre-activation
 * with the other sign, b the key's. A larger regime serves smaller sizes too, at less
 * accuracy; operands are stored as said here. */
typedef enum {
    ADDITIVE_SMALL, /* both <= 1:   u = tanh a, v = tanh b: (v - u) / (1 - u v) */
    ADDITIVE_EXP,   /* both <= 9:   A = e^2a, B = e^2b: (B - A) / (B + A) */
    ADDITIVE_LARGE, /* <= 21.8:     the same of A = 1 and B / A, at most 2^28 or 2^60 */
    ADDITIVE_DIRECT, /* any:         a, b themselves: tanh(b - a) */
} additive_regime;

typedef struct {
    const char *name;

    /* Most queries of a block, forward: 32 or 64. A set's widest tile wants so many, but
     * tiles of scores, queries and pooled values have to stay in L1. */
    int lanes;

    /* Columns of Y that the products below take in at a time, a multiple of 16: an
     * operand that many rows pass over is best laid out in panels of so many. */
    int panel;

    /* -- products ------------------------------------------------------------------ */

    /* C[i][j] (+)= sum_t X[i*ldx + t*sx] * Y[t*ldy + j],  i < rows, j < cols, t < K.
     * Any sizes, also 0; X is broadcast from where it lies, Y is read along its rows.
     * Chunks of ATTN_CHUNK terms; each chunk's sum is added to C, the first as `into`
     * says. */
    void (*matmul)(float *C, int64_t ldc, const float *X, int64_t ldx, int64_t sx,
                   const float *Y, int64_t ldy, int64_t rows, int64_t cols, int64_t K,
                   attn_into into);

    /* C[i][l] = C[i][l] * alpha[l] + sum_t X[t*ldx + i] * Y[t][l] over the live (t, l);
     * i < rows, t < K <= ATTN_KEYS, C and Y [.][lanes]. alpha NULL: C[i][l] + the sum.
     * The first 64 terms are summed and added, then the others. A dead pair may add 0:
     * the sign of a sum that is 0 is that of +0 at best (unpack). */
    void (*pool)(float *C, const float *X, int64_t ldx, const float *Y, int lanes,
                 int64_t rows, int K, const float *alpha, const uint64_t *live);

    /* C[i*ldc + j] += sum_t X[i][t] * Y[t*ldy + j] over the lanes t live in row i;
     * X [.][lanes], t < K <= lanes. live is not NULL (matmul does that case). */
    void (*matmul_live)(float *C, int64_t ldc, const float *X, int lanes,
                        const float *Y, int64_t ldy, int rows, int64_t cols, int K,
                        const uint64_t *live);

    /* S[i][l] = factor * sum_t (Y[t][l] - X[i*ldx + t])^2, t < K; S, Y [.][lanes]. */
    void (*distance)(float *S, const float *X, int64_t ldx, const float *Y, int lanes,
                     int rows, int64_t K, float factor);

    /* dQ[d][l] += sum_i G[i][l] * (X[i*ldx + d] - Q[d][l]), live (i, l), i < rows. */
    void (*difference_lanes)(float *dQ, const float *G, const float *X, int64_t ldx,
                             const float *Q, int lanes, int rows, int64_t D,
                             const uint64_t *live);

    /* dX[i*D + d] += factor * sum_t G[i][t] * (Y[t*ldy + d] - X[i*ldx + d]) over live t
     * < K. */
    void (*difference_rows)(float *dX, const float *G, int lanes, const float *Y,
                            int64_t ldy, const float *X, int64_t ldx, int rows, int K,
                            int64_t D, float factor, const uint64_t *live);

    /* C[i*ldc + j] = 0 + X[i] * Y[j], i < keys, j < D; 0 where bit 0 of live[i] is not set:
     * what the products above make of C = 0 for one lane. */
    void (*outer)(float *C, int64_t ldc, const float *X, const float *Y, int keys,
                  int64_t D, const uint64_t *live);

    /* -- layout: rows of user memory to lanes and back ----------------------------- */

    /* dst[c][l] = gain * src[l*lds + c], l < rows <= lanes, c < cols; 0 for rows <= l <
     * lanes. */
    void (*pack)(float *dst, int lanes, const float *src, int64_t lds, int rows,
                 int64_t cols, float gain);

    /* dst[l*ldd + c] = src[c][l] * factor[l] (factor NULL: src[c][l]) + 0, l < rows, c
     * < cols. Adding 0 turns -0 into +0: a sum of -0 stays -0 if nothing else is added,
     * but a visit to a tile without a live pair adds +0 to it. Without this, then, the
     * sign of a zero would depend on which tiles were visited. */
    void (*unpack)(float *dst, int64_t ldd, const float *src, int lanes, int rows,
                   int64_t cols, const float *factor);

    /* -- who takes part ------------------------------------------------------------ */

    /* live[i] loses bit l where bytes[l*stride + i] is 0, l < rows, i < keys; all other
     * bits of it from rows on. live_floats: where the number is -inf. */
    void (*live_bytes)(uint64_t *live, const uint8_t *bytes, int64_t stride, int rows,
                       int keys);
    void (*live_floats)(uint64_t *live, const float *numbers, int64_t stride, int rows,
                        int keys);

    /* -- softmax of tiles, base 2: scores come multiplied by log2(e) --------------- */

    /* Online softmax of one more tile, per lane: with m' = max(m, live scores),
     *     alpha = 2^(m - m'), P = 2^(S - m') in place (dead: 0), l = l alpha + sum P.
     * An infinite m' counts as 0 in the exponents; NaN scores give NaN in P and l. */
    void (*softmax_tile)(float *S, int lanes, int rows, float *m, float *l,
                         float *alpha, const uint64_t *live);

    /* P = 2^(S - m) * inv in place, 0 where dead; m, inv per lane. */
    void (*prob_tile)(float *S, int lanes, int rows, const float *m, const float *inv,
                      const uint64_t *live);

    /* S[i][l] += gain * T[i*ldt + l]; ldt 0: one row for all. */
    void (*add_tile)(float *S, int lanes, int rows, const float *T, int ldt,
                     float gain);

    /* S[i] = cap tanh(S[i] / cap), i < n, inv being 1 / cap: a number whose square is
     * below 2^-24 of the cap's stays as it is, an infinite one becomes the cap. slope[i]
     * (NULL: not wanted) = 1 - tanh^2, with all its digits however close the cap is, and
     * 0 below 2^-124 and for NaN: times the 0 of a dead pair it is 0. */
    void (*softcap)(float *S, float *slope, int64_t n, float cap, float inv);

    /* S[i][l] *= factor[l]. */
    void (*scale_tile)(float *S, int lanes, int rows, const float *factor);

    /* D[l] += sum_i X[i][l] * Y[i][l] over live pairs. */
    void (*dot_tile)(float *D, const float *X, const float *Y, int lanes, int rows,
                     const uint64_t *live);

    /* dS = P * ((dP - D) + E) * gain, into dP; 0 where dead. D, E per lane. */
    void (*dscore_tile)(float *dP, const float *P, const float *D, const float *E,
                        float gain, int lanes, int rows, const uint64_t *live);

    /* P *= scale where the bit of keep is set, P *= 0 elsewhere (NaN stays NaN). */
    void (*keep_tile)(float *P, int lanes, int rows, float scale, const uint64_t *keep);

    /* -- masked softmax as its own function, rows in memory ------------------------ */

    /* Rows i < rows of N >= 1 numbers each. Element j < n[i] of row i is live iff
     * mask[i][j] is not 0 (mask NULL: all are); the others, those from n[i] to N among
     * them, give 0 whatever they hold. With all live:
     *     out[j] = exp(x[j] - max x) / sum_j exp(x[j] - max x). */
    void (*softmax_rows)(float *out, const float *x, int64_t N, int rows,
                         const int64_t *n, const uint8_t *const *mask);

    /* dx[j] = w[j] * (dw[j] - sum_j w[j] dw[j]). */
    void (*softmax_rows_backward)(float *dx, const float *dw, const float *w, int64_t N,
                                  int rows, const int64_t *n,
                                  const uint8_t *const *mask);

    /* sum_j x[j] y[j] on 16 canonical lanes; largest |x[j]| that is not NaN, at least
     * 0. */
    float (*dot_row)(const float *x, const float *y, int64_t n);
    float (*absmax_row)(const float *x, int64_t n);

    /* -- additive score ------------------------------------------------------------ */

    /* out[i] = e^(2 x[i]) and tanh(x[i]); e^ of more than 87 is some large number. */
    void (*exp_form)(float *out, const float *x, int64_t n);
    void (*tanh_form)(float *out, const float *x, int64_t n);

    /* A[h][l] = -(A[h][l] + bias[h]), bias NULL: -A[h][l]; top[l] = largest |A[h][l]|
     * that is not NaN, at least 0. */
    void (*negate_absmax)(float *A, const float *bias, float *top, int lanes,
                          int64_t H);

    /* S[i][l] = sum_h w[h] tanh(b[i][h] - a[h][l]) where live (elsewhere S is left
     * alone). A [H][lanes], B [rows][H] in the regime's form, H a multiple of 4. Four
     * hidden units share one division; |w| <= 2^13, but any with ADDITIVE_DIRECT. The
     * sums of ATTN_UNITS units each are added one after the other. */
    void (*additive_tile)(float *S, const float *A, const float *B, const float *w,
                          int lanes, int rows, int64_t H, additive_regime regime,
                          const uint64_t *live);

    /* With t = tanh(b - a) and G = dS, over the live pairs:
     *     dA[h][l] += sum_i G (1 - t^2),  dB[i][h] += sum_l G (1 - t^2),
     *     C[h][l] += sum_i G t.
     * lanes 1, 16 or 32, H a multiple of 4; the factor w_v[h] is the caller's to apply.
     */
    void (*additive_tile_backward)(float *dA, float *C, float *dB, const float *A,
                                   const float *B, const float *G, int lanes, int rows,
                                   int64_t H, additive_regime regime,
                                   const uint64_t *live);

    /* -- random words -------------------------------------------------------------- */

    /* words[4*i + w] = word w of Philox4x32-10 at counter (counter + i, stream), both
     * 64 bits wide, i < n. */
    void (*philox)(uint32_t *words, int64_t n, uint64_t counter, uint64_t stream,
                   uint64_t key);
} attn_kernels;

extern const attn_kernels attn_kernels_scalar, attn_kernels_generic;
#if defined(__x86_64__)
extern const attn_kernels attn_kernels_avx2, attn_kernels_avx512;
#elif defined(__wasm_simd128__)
extern const attn_kernels attn_kernels_wasm;
#endif

/* The chosen table: complete from the start (generic), set once at import by
 * dispatch.c. */
extern const attn_kernels *attn_simd;

#endif
