/*
 * v_scalar.h -- the vocabulary with one lane: plain C, and the specification.
 *
 * Every vocabulary header defines the same names in the same order. A `vf` is VLEN
 * floats, a `vm` one yes or no per lane. What one lane does is written here; a wider
 * header does exactly this, to the last bit, in every lane. In particular
 *     v_fma    rounds once (except in v_generic.h on a CPU without fused multiply-add)
 *     v_max    a > b ? a : b, hence b if either is NaN; v_min likewise with <
 *     v_sum16  adds sixteen lanes in one fixed tree: i with i+8, then i+4, i+2, i+1
 * and nothing estimates: divisions are true divisions.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Floats of a vector; the sums of a tile: most rows of most vectors, most rows of fewer,
 * most vectors; most queries of a block, forward, whose tile is to stay in L1. */
enum { VLEN = 1, TILE_ROWS = 4, TILE_VECTORS = 2, WIDE_ROWS = 4, FORWARD_LANES = 32 };

typedef float vf;
typedef int vm;

#define V_FN static inline __attribute__((always_inline, unused))
/* Sixteen lanes one by one are no registers: no loop is unrolled, not even by the
 * compiler's own choice, and the kernels compile in 4 s instead of 10. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(disable)")
#else
#define UNROLL _Pragma("GCC unroll 1")
#endif

/* ---- memory: _n touches the first n lanes only (0 <= n <= VLEN) and reads the rest
 *      as 0 */
V_FN vf v_zero(void) { return 0.0f; }
V_FN vf v_set1(float x) { return x; }
V_FN vf v_load(const float *p) { return *p; }
V_FN void v_store(float *p, vf a) { *p = a; }
V_FN vf v_load_n(const float *p, int n) { return n > 0 ? *p : 0.0f; }
V_FN void v_store_n(float *p, vf a, int n) { if (n > 0) { *p = a; } }

/* ---- arithmetic: v_fma is a * b + c, v_fnma is c - a * b ------------------------- */
V_FN vf v_add(vf a, vf b) { return a + b; }
V_FN vf v_sub(vf a, vf b) { return a - b; }
V_FN vf v_mul(vf a, vf b) { return a * b; }
V_FN vf v_div(vf a, vf b) { return a / b; }
V_FN vf v_fma(vf a, vf b, vf c) { return fmaf(a, b, c); }
V_FN vf v_fnma(vf a, vf b, vf c) { return fmaf(-a, b, c); }
V_FN vf v_max(vf a, vf b) { return a > b ? a : b; }
V_FN vf v_min(vf a, vf b) { return a < b ? a : b; }
V_FN vf v_abs(vf a) { return fabsf(a); }

/* ---- yes or no: comparisons with NaN are no -------------------------------------- */
V_FN vm v_lt(vf a, vf b) { return a < b; }
V_FN vm v_not_lt(vf a, vf b) { return !(a < b); }
V_FN vm m_from_bits(uint64_t bits) { return (int)(bits & 1); }
V_FN uint64_t m_to_bits(vm m) { return (uint64_t)m; }
V_FN vf v_select(vm m, vf yes, vf no) { return m ? yes : no; }
V_FN vf v_fma_if(vm m, vf a, vf b, vf c) { return m ? fmaf(a, b, c) : c; }

/* ---- powers of two: t rounded to a whole number, ties to even, |t| < 2^22, and the
 *      same as n, in a form for v_scale; p * 2^n where m, else 0, -126 <= n <= 127 */
V_FN vf v_round(vf t, vf *n)
{
    /* 1.5 * 2^23: the sum has no bits for a fraction, and n in its low bits */
    vf magic = v_set1(0x1.8p23f);
    *n = v_add(t, magic);
    return v_sub(*n, magic);
}
/* t - n, n as from v_round, where m (t is not below -126 there), else any finite numbers: for
 * t = -inf it raises no FE_INVALID */
V_FN vf v_split(vm m, vf t, vf *n)
{
    vf bounded = v_max(v_set1(-127.0f), t); /* costs less than a choice by m */
    (void)m;
    return v_sub(bounded, v_round(bounded, n));
}
V_FN vf v_scale(vm m, vf p, vf n)
{
    uint32_t u;
    memcpy(&u, &n, 4);
    u = (u << 23) + (127u << 23);
    memcpy(&n, &u, 4);
    return m ? v_mul(p, n) : 0.0f;
}
/* ---- bits: x with the sign of s */
V_FN vf v_copysign(vf x, vf s) { return copysignf(x, s); }
/* bit i: p[i] is not 0, i < 64 */
V_FN uint64_t v_nonzero64(const uint8_t *p)
{
    uint64_t bits = 0;
    for (int i = 0; i < 64; i++) { bits |= (uint64_t)(p[i] != 0) << i; }
    return bits;
}

/* ---- across lanes: v holds 16 canonical lanes in 16 / VLEN vectors --------------- */
V_FN float v_sum16(const vf v[16])
{
    float s8[8], s4[4];
    for (int i = 0; i < 8; i++) { s8[i] = v[i] + v[i + 8]; }
    for (int i = 0; i < 4; i++) { s4[i] = s8[i] + s8[i + 4]; }
    return (s4[0] + s4[2]) + (s4[1] + s4[3]);
}
V_FN float v_max16(const vf v[16])
{
    vf m = v[0];
    for (int i = 1; i < 16; i++) { m = v_max(v[i], m); }
    return m;
}
/* Four vectors of memory, VLEN fours of numbers, become the fours' first numbers, their
 * second, ... in some order of the fours; and back. */
V_FN void v_transpose_fours(vf v[4]) { (void)v; }
V_FN void v_transpose(vf v[1]) { (void)v; }
/* to[u] = v_fma(factor, v_sum16 of v[.][u], to[u]), u < 4 */
V_FN void v_fma_sums16(float to[4], float factor, const vf v[16][4])
{
    for (int u = 0; u < 4; u++) {
        vf lanes[16];
        for (int i = 0; i < 16; i++) { lanes[i] = v[i][u]; }
        to[u] = fmaf(v_sum16(lanes), factor, to[u]);
    }
}
