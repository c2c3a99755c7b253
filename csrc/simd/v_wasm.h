/*
 * v_wasm.h -- the vocabulary in four lanes of WebAssembly's SIMD128. See v_scalar.h for
 * the meaning.
 *
 * WebAssembly has no fused multiply-add, and its relaxed one rounds as the browser
 * likes. So v_fma computes in double, to the bits of one rounding.
 */
#include <stdint.h>
#include <wasm_simd128.h>

/* Browsers have the 16 registers of SSE or the 32 of AArch64, and a multiply-add takes
 * a few of them for itself. */
enum { VLEN = 4, TILE_ROWS = 4, TILE_VECTORS = 2, WIDE_ROWS = 4, FORWARD_LANES = 32 };

typedef v128_t vf;
typedef v128_t vm; /* all ones or all zeros in each lane */

#define V_FN static inline __attribute__((always_inline, unused))
/* A page waits for what it loads. Unrolled, the loops are half as much code again and no
 * faster, as most of the time goes into v_fma. */
#define UNROLL _Pragma("clang loop unroll(disable)")

/* ---- memory: _n touches the first n lanes only (0 <= n <= VLEN) and reads the rest
 *      as 0 */
V_FN vf v_zero(void) { return wasm_f32x4_const(0.0f, 0.0f, 0.0f, 0.0f); }
V_FN vf v_set1(float x) { return wasm_f32x4_splat(x); }
V_FN vf v_load(const float *p) { return wasm_v128_load(p); }
V_FN void v_store(float *p, vf a) { wasm_v128_store(p, a); }
V_FN vf v_load_n(const float *p, int n)
{
    float a[4] = {0};
    for (int i = 0; i < n; i++) { a[i] = p[i]; }
    return v_load(a);
}
V_FN void v_store_n(float *p, vf v, int n)
{
    float a[4];
    v_store(a, v);
    for (int i = 0; i < n; i++) { p[i] = a[i]; }
}

/* ---- arithmetic: v_fma is a * b + c, v_fnma is c - a * b ------------------------- */
V_FN vf v_add(vf a, vf b) { return wasm_f32x4_add(a, b); }
V_FN vf v_sub(vf a, vf b) { return wasm_f32x4_sub(a, b); }
V_FN vf v_mul(vf a, vf b) { return wasm_f32x4_mul(a, b); }
V_FN vf v_div(vf a, vf b) { return wasm_f32x4_div(a, b); }
/* a * b + c of two lanes as doubles, rounded to odd: of the two doubles next to a sum
 * that is none, the one whose last bit is set. From there to float is one rounding of
 * the exact sum (Boldo and Melquiond 2008), subnormal or not. The product is exact; what
 * the sum rounds off is what Knuth's two-sum finds. Of infinities and NaN it is NaN, and
 * no comparison with it holds. */
V_FN v128_t v_fma_odd(v128_t a, v128_t b, v128_t c)
{
    v128_t product = wasm_f64x2_mul(a, b), sum = wasm_f64x2_add(product, c);
    v128_t of_c = wasm_f64x2_sub(sum, product);
    v128_t rest = wasm_f64x2_add(wasm_f64x2_sub(product, wasm_f64x2_sub(sum, of_c)),
                                 wasm_f64x2_sub(c, of_c));
    v128_t side = wasm_f64x2_mul(rest, sum), zero = wasm_f64x2_splat(0.0);
    v128_t too_far = wasm_f64x2_lt(side, zero); /* from zero: -1, so one step back */
    v128_t inexact = wasm_v128_or(too_far, wasm_f64x2_gt(side, zero));
    return wasm_v128_or(wasm_i64x2_add(sum, too_far),
                        wasm_v128_and(inexact, wasm_i64x2_splat(1)));
}
V_FN v128_t v_high_doubles(vf a)
{
    return wasm_f64x2_promote_low_f32x4(wasm_i32x4_shuffle(a, a, 2, 3, 2, 3));
}
/* A function: written out wherever it is used, it makes a module four times as large,
 * and slower. */
static __attribute__((noinline, unused)) vf v_fma_in_double(vf a, vf b, vf c)
{
    v128_t low = v_fma_odd(wasm_f64x2_promote_low_f32x4(a),
                           wasm_f64x2_promote_low_f32x4(b),
                           wasm_f64x2_promote_low_f32x4(c));
    v128_t high = v_fma_odd(v_high_doubles(a), v_high_doubles(b), v_high_doubles(c));
    return wasm_i32x4_shuffle(wasm_f32x4_demote_f64x2_zero(low),
                              wasm_f32x4_demote_f64x2_zero(high), 0, 1, 4, 5);
}
V_FN vf v_fma(vf a, vf b, vf c) { return v_fma_in_double(a, b, c); }
V_FN vf v_fnma(vf a, vf b, vf c) { return v_fma(wasm_f32x4_neg(a), b, c); }
V_FN vf v_max(vf a, vf b) { return wasm_f32x4_pmax(b, a); }
V_FN vf v_min(vf a, vf b) { return wasm_f32x4_pmin(b, a); }
V_FN vf v_abs(vf a) { return wasm_f32x4_abs(a); }

/* ---- yes or no: comparisons with NaN are no -------------------------------------- */
V_FN vm v_lt(vf a, vf b) { return wasm_f32x4_lt(a, b); }
V_FN vm v_not_lt(vf a, vf b) { return wasm_v128_not(wasm_f32x4_lt(a, b)); }
V_FN vm m_from_bits(uint64_t bits)
{
    vm lane = wasm_i32x4_const(1, 2, 4, 8);
    return wasm_i32x4_eq(wasm_v128_and(wasm_i32x4_splat((int)(bits & 15)), lane), lane);
}
V_FN uint64_t m_to_bits(vm m) { return (uint64_t)wasm_i32x4_bitmask(m); }
V_FN vf v_select(vm m, vf yes, vf no) { return wasm_v128_bitselect(yes, no, m); }
V_FN vf v_fma_if(vm m, vf a, vf b, vf c) { return v_select(m, v_fma(a, b, c), c); }

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
    vf power = wasm_i32x4_add(wasm_i32x4_shl(n, 23), v_set1(1.0f));
    return wasm_v128_and(m, v_mul(p, power));
}
/* ---- bits: x with the sign of s */
V_FN vf v_copysign(vf x, vf s)
{
    return wasm_v128_bitselect(s, x, v_set1(-0.0f));
}
V_FN uint64_t v_nonzero64(const uint8_t *p)
{
    uint64_t zeros = 0;
    for (int i = 0; i < 64; i += 16) {
        v128_t is_zero = wasm_i8x16_eq(wasm_v128_load(p + i), wasm_i8x16_splat(0));
        zeros |= (uint64_t)wasm_i8x16_bitmask(is_zero) << i;
    }
    return ~zeros;
}

/* ---- across lanes: v holds 16 canonical lanes in 16 / VLEN vectors --------------- */
V_FN float v_sum16(const vf v[4])
{
    vf s4 = v_add(v_add(v[0], v[2]), v_add(v[1], v[3]));
    vf s2 = v_add(s4, wasm_i32x4_shuffle(s4, s4, 2, 3, 2, 3));
    return wasm_f32x4_extract_lane(s2, 0) + wasm_f32x4_extract_lane(s2, 1);
}
V_FN float v_max16(const vf v[4])
{
    vf m4 = v_max(v_max(v[0], v[2]), v_max(v[1], v[3]));
    vf m2 = v_max(m4, wasm_i32x4_shuffle(m4, m4, 2, 3, 2, 3));
    return wasm_f32x4_extract_lane(v_max(m2, wasm_i32x4_shuffle(m2, m2, 1, 1, 1, 1)), 0);
}
V_FN void v_transpose_fours(vf v[4])
{
    vf a = wasm_i32x4_shuffle(v[0], v[1], 0, 4, 1, 5);
    vf b = wasm_i32x4_shuffle(v[0], v[1], 2, 6, 3, 7);
    vf c = wasm_i32x4_shuffle(v[2], v[3], 0, 4, 1, 5);
    vf d = wasm_i32x4_shuffle(v[2], v[3], 2, 6, 3, 7);
    v[0] = wasm_i32x4_shuffle(a, c, 0, 1, 4, 5);
    v[1] = wasm_i32x4_shuffle(a, c, 2, 3, 6, 7);
    v[2] = wasm_i32x4_shuffle(b, d, 0, 1, 4, 5);
    v[3] = wasm_i32x4_shuffle(b, d, 2, 3, 6, 7);
}
V_FN void v_transpose(vf v[4]) { v_transpose_fours(v); }
V_FN void v_fma_sums16(float to[4], float factor, const vf v[4][4])
{
    vf s4[4];
    for (int u = 0; u < 4; u++) {
        s4[u] = v_add(v_add(v[0][u], v[2][u]), v_add(v[1][u], v[3][u]));
    }
    v_transpose(s4);
    vf sum = v_add(v_add(s4[0], s4[2]), v_add(s4[1], s4[3]));
    v_store(to, v_fma(sum, v_set1(factor), v_load(to)));
}
