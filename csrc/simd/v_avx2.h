/*
 * v_avx2.h -- the vocabulary in eight lanes of AVX2 with FMA. See v_scalar.h for the
 * meaning.
 */
#include <immintrin.h>
#include <stdint.h>

/* Of 16 registers twelve hold sums. On Zen 3 3 x 4 and 4 x 3 are as fast, 2 x 6 a sixth
 * slower; 64 lanes forward gain 1 % and lose 6 % under a causal mask. */
enum { VLEN = 8, TILE_ROWS = 6, TILE_VECTORS = 2, WIDE_ROWS = 6, FORWARD_LANES = 32 };

typedef __m256 vf;
typedef __m256 vm; /* all ones or all zeros in each lane */

#define V_FN static inline __attribute__((always_inline, unused))

/* ---- memory: _n touches the first n lanes only (0 <= n <= VLEN) and reads the rest
 *      as 0 */
V_FN __m256i v_first(int n) /* all ones in the first n lanes */
{
    static const int32_t ones[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const __m256i *)(ones + 8 - n));
}
V_FN vf v_zero(void) { return _mm256_setzero_ps(); }
V_FN vf v_set1(float x) { return _mm256_set1_ps(x); }
V_FN vf v_load(const float *p) { return _mm256_loadu_ps(p); }
V_FN void v_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
V_FN vf v_load_n(const float *p, int n) { return _mm256_maskload_ps(p, v_first(n)); }
/* AMD takes some 17 cycles for a store with a mask: none of a whole vector. */
V_FN void v_store_n(float *p, vf a, int n)
{
    if (n == VLEN) {
        v_store(p, a);
    } else {
        _mm256_maskstore_ps(p, v_first(n), a);
    }
}

/* ---- arithmetic: v_fma is a * b + c, v_fnma is c - a * b ------------------------- */
V_FN vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
V_FN vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
V_FN vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
V_FN vf v_div(vf a, vf b) { return _mm256_div_ps(a, b); }
V_FN vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
V_FN vf v_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
V_FN vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }
V_FN vf v_min(vf a, vf b) { return _mm256_min_ps(a, b); }
V_FN vf v_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }

/* ---- yes or no: comparisons with NaN are no -------------------------------------- */
V_FN vm v_lt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
V_FN vm v_not_lt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_NLT_UQ); }
V_FN vm m_from_bits(uint64_t bits)
{
    __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i b = _mm256_and_si256(_mm256_set1_epi32((int)(bits & 255)), lane);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(b, lane));
}
V_FN uint64_t m_to_bits(vm m) { return (uint64_t)_mm256_movemask_ps(m); }
V_FN vf v_select(vm m, vf yes, vf no) { return _mm256_blendv_ps(no, yes, m); }
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
    __m256i one = _mm256_castps_si256(v_set1(1.0f));
    __m256i power = _mm256_slli_epi32(_mm256_castps_si256(n), 23);
    power = _mm256_add_epi32(power, one);
    return _mm256_and_ps(m, v_mul(p, _mm256_castsi256_ps(power)));
}
/* ---- bits: x with the sign of s */
V_FN vf v_copysign(vf x, vf s)
{
    vf sign = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(sign, x), _mm256_and_ps(sign, s));
}
V_FN uint64_t v_nonzero64(const uint8_t *p)
{
    __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)p);
    __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(p + 32));
    __m256i zero = _mm256_setzero_si256();
    uint32_t l = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(low, zero));
    uint32_t h = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(high, zero));
    return ~((uint64_t)h << 32 | l);
}

/* ---- across lanes: v holds 16 canonical lanes in 16 / VLEN vectors --------------- */
V_FN float v_sum16(const vf v[2])
{
    vf s8 = _mm256_add_ps(v[0], v[1]);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
V_FN float v_max16(const vf v[2])
{
    vf m8 = _mm256_max_ps(v[0], v[1]);
    __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
    __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
    return _mm_cvtss_f32(_mm_max_ss(m2, _mm_shuffle_ps(m2, m2, 1)));
}
/* Each four lanes of four vectors are a square: transposed, each in its place. */
V_FN void v_transpose_fours(vf v[4])
{
    vf a = _mm256_unpacklo_ps(v[0], v[1]), b = _mm256_unpackhi_ps(v[0], v[1]);
    vf c = _mm256_unpacklo_ps(v[2], v[3]), d = _mm256_unpackhi_ps(v[2], v[3]);
    v[0] = _mm256_shuffle_ps(a, c, 0x44);
    v[1] = _mm256_shuffle_ps(a, c, 0xee);
    v[2] = _mm256_shuffle_ps(b, d, 0x44);
    v[3] = _mm256_shuffle_ps(b, d, 0xee);
}
/* the fours, then they change places */
V_FN void v_transpose(vf v[8])
{
    v_transpose_fours(v);
    v_transpose_fours(v + 4);
    for (int i = 0; i < 4; i++) {
        vf p = v[i], q = v[i + 4];
        v[i] = _mm256_permute2f128_ps(p, q, 0x20);
        v[i + 4] = _mm256_permute2f128_ps(p, q, 0x31);
    }
}
V_FN void v_fma_sums16(float to[4], float factor, const vf v[2][4])
{
    vf s8[4];
    for (int u = 0; u < 4; u++) { s8[u] = _mm256_add_ps(v[0][u], v[1][u]); }
    vf a = _mm256_add_ps(_mm256_permute2f128_ps(s8[0], s8[2], 0x20),
                         _mm256_permute2f128_ps(s8[0], s8[2], 0x31));
    vf b = _mm256_add_ps(_mm256_permute2f128_ps(s8[1], s8[3], 0x20),
                         _mm256_permute2f128_ps(s8[1], s8[3], 0x31));
    vf s2 = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    __m128 low = _mm256_castps256_ps128(s2), high = _mm256_extractf128_ps(s2, 1);
    __m128 sum = _mm_add_ps(_mm_shuffle_ps(low, high, 0x88),
                            _mm_shuffle_ps(low, high, 0xdd));
    _mm_storeu_ps(to, _mm_fmadd_ps(sum, _mm_set1_ps(factor), _mm_loadu_ps(to)));
}
