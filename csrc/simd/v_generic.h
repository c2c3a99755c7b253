/*
 * v_generic.h -- the vocabulary in four lanes of GNU C vectors: any CPU with gcc or
 * clang.
 *
 * The same bits as v_scalar.h where the target has fused multiply-add (AArch64, POWER,
 * ...). On baseline x86-64 (SSE2) v_fma rounds twice, the one exception the project
 * allows.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Of the 16 registers of SSE2 twelve hold sums. On Zen 3, against 4 x 2: a score tile 12.1 ->
 * 14.0 GF/s, pooling 12.2 -> 13.0, 64 rows through a panel 12.1 -> 12.5; 3 x 4 is as fast.
 * The 32 registers of AArch64 would hold more; that has not been timed. */
enum { VLEN = 4, TILE_ROWS = 6, TILE_VECTORS = 2, WIDE_ROWS = 6, FORWARD_LANES = 32 };

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vm __attribute__((vector_size(16)));

#define V_FN static inline __attribute__((always_inline, unused))
#define UNROLL_LANES /* sixteen registers do not hold four or eight vectors' sums */

/* ---- memory: _n touches the first n lanes only (0 <= n <= VLEN) and reads the rest
 *      as 0 */
V_FN vf v_zero(void) { return (vf){0}; }
V_FN vf v_set1(float x) { return (vf){x, x, x, x}; }
V_FN vf v_load(const float *p) { vf a; memcpy(&a, p, sizeof a); return a; }
V_FN void v_store(float *p, vf a) { memcpy(p, &a, sizeof a); }
V_FN vf v_load_n(const float *p, int n)
{
    vf a = {0};
    for (int i = 0; i < n; i++) { a[i] = p[i]; }
    return a;
}
V_FN void v_store_n(float *p, vf a, int n)
{
    for (int i = 0; i < n; i++) { p[i] = a[i]; }
}

/* ---- arithmetic: v_fma is a * b + c, v_fnma is c - a * b ------------------------- */
V_FN vf v_add(vf a, vf b) { return a + b; }
V_FN vf v_sub(vf a, vf b) { return a - b; }
V_FN vf v_mul(vf a, vf b) { return a * b; }
V_FN vf v_div(vf a, vf b) { return a / b; }
V_FN vf v_fma(vf a, vf b, vf c)
{
#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    /* the CPU has it: this becomes one vector instruction */
    return (vf){fmaf(a[0], b[0], c[0]), fmaf(a[1], b[1], c[1]),
                fmaf(a[2], b[2], c[2]), fmaf(a[3], b[3], c[3])};
#else
    vf product = a * b; /* a statement of its own: no compiler may contract it */
    return product + c;
#endif
}
V_FN vf v_fnma(vf a, vf b, vf c) { return v_fma(-a, b, c); }
V_FN vf v_blend(vm m, vf yes, vf no) { return (vf)(((vm)yes & m) | ((vm)no & ~m)); }
V_FN vf v_max(vf a, vf b) { return v_blend(a > b, a, b); }
V_FN vf v_min(vf a, vf b) { return v_blend(a < b, a, b); }
V_FN vf v_abs(vf a) { return (vf)((vm)a & 0x7fffffff); }

/* ---- yes or no: comparisons with NaN are no -------------------------------------- */
V_FN vm v_lt(vf a, vf b) { return a < b; }
V_FN vm v_not_lt(vf a, vf b) { return ~(a < b); }
V_FN vm m_from_bits(uint64_t bits)
{
    vm lane = {1, 2, 4, 8};
    return ((int32_t)(bits & 15) & lane) == lane;
}
V_FN uint64_t m_to_bits(vm m)
{
    return (uint64_t)((m[0] & 1) | (m[1] & 2) | (m[2] & 4) | (m[3] & 8));
}
V_FN vf v_select(vm m, vf yes, vf no) { return v_blend(m, yes, no); }
V_FN vf v_fma_if(vm m, vf a, vf b, vf c) { return v_blend(m, v_fma(a, b, c), c); }

/* ---- powers of two: t rounded to a whole number, ties to even, |t| < 2^22, and the
 *      same as n, in a form for v_scale; p * 2^n where m, else 0, -126 <= n <= 127 */
V_FN vf v_round(vf t, vf *n)
{
    /* 1.5 * 2^23: the sum has no bits for a fraction, and n in its low bits */
    vf magic = v_set1(0x1.8p23f);
    *n = v_add(t, magic);
    return v_sub(*n, magic);
}
V_FN vf v_split(vm m, vf t, vf *n)
{
    vf bounded = v_max(v_set1(-127.0f), t); /* costs less than a choice by m */
    (void)m;
    return v_sub(bounded, v_round(bounded, n));
}
V_FN vf v_scale(vm m, vf p, vf n)
{
    typedef uint32_t bits __attribute__((vector_size(16)));
    vf power = (vf)(((bits)n << 23) + (bits)v_set1(1.0f));
    return (vf)((vm)v_mul(p, power) & m);
}
/* ---- bits: x with the sign of s */
V_FN vf v_copysign(vf x, vf s)
{
    return (vf)(((vm)x & 0x7fffffff) | ((vm)s & ~0x7fffffff));
}
V_FN uint64_t v_nonzero64(const uint8_t *p)
{
    const uint64_t ones = 0x0101010101010101;
    uint64_t bits = 0;
    for (int i = 0; i < 64; i += 8) { /* eight bytes, each folded to a bit */
        const uint8_t *q = p + i;
        uint64_t x = (uint64_t)q[0] | (uint64_t)q[1] << 8 | (uint64_t)q[2] << 16 |
                     (uint64_t)q[3] << 24 | (uint64_t)q[4] << 32 |
                     (uint64_t)q[5] << 40 | (uint64_t)q[6] << 48 |
                     (uint64_t)q[7] << 56;
        x |= x >> 4 & ones * 15;
        x |= x >> 2 & ones * 3;
        x = (x | (x >> 1 & ones)) & ones;
        bits |= (x * 0x0102040810204080) >> 56 << i;
    }
    return bits;
}

/* ---- across lanes: v holds 16 canonical lanes in 16 / VLEN vectors --------------- */
V_FN float v_sum16(const vf v[4])
{
    vf s4 = (v[0] + v[2]) + (v[1] + v[3]);
    return (s4[0] + s4[2]) + (s4[1] + s4[3]);
}
V_FN float v_max16(const vf v[4])
{
    vf m = v_max(v_max(v[0], v[2]), v_max(v[1], v[3]));
    float a = m[0] > m[2] ? m[0] : m[2], b = m[1] > m[3] ? m[1] : m[3];
    return a > b ? a : b;
}
V_FN void v_transpose_fours(vf v[4])
{
    vf a = v[0], b = v[1], c = v[2], d = v[3];
    v[0] = (vf){a[0], b[0], c[0], d[0]};
    v[1] = (vf){a[1], b[1], c[1], d[1]};
    v[2] = (vf){a[2], b[2], c[2], d[2]};
    v[3] = (vf){a[3], b[3], c[3], d[3]};
}
V_FN void v_transpose(vf v[4]) { v_transpose_fours(v); }
V_FN void v_fma_sums16(float to[4], float factor, const vf v[4][4])
{
    vf s4[4];
    for (int u = 0; u < 4; u++) { s4[u] = (v[0][u] + v[2][u]) + (v[1][u] + v[3][u]); }
    v_transpose(s4);
    vf sum = (s4[0] + s4[2]) + (s4[1] + s4[3]);
    v_store(to, v_fma(sum, v_set1(factor), v_load(to)));
}
