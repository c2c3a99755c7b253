/*
 * v_avx512.h -- the vocabulary in sixteen lanes of AVX-512 (F and DQ). See v_scalar.h.
 */
#include <immintrin.h>
#include <stdint.h>

/* Of 32 registers 24 hold the sums of the widest tile, four a row of Y. Measured on Cascade
 * Lake, tiles of 64 features in a cache, 8 x 2 before: a score tile 86 -> 94 % of the peak,
 * pooling 80 -> 90. It takes blocks of 64 lanes forward: 6 to 11 % (dense, 512 queries and
 * more). Twelve rows of two vectors are no faster than eight: lines of L1 that many rows
 * apart are in each other's way. */
enum { VLEN = 16, TILE_ROWS = 8, TILE_VECTORS = 4, WIDE_ROWS = 6, FORWARD_LANES = 64 };

typedef __m512 vf;
typedef __mmask16 vm;

#define V_FN static inline __attribute__((always_inline, unused))

/* ---- memory: _n touches the first n lanes only (0 <= n <= VLEN) and reads the rest
 *      as 0 */
V_FN __mmask16 v_first(int n) { return (__mmask16)((1u << n) - 1); }
V_FN vf v_zero(void) { return _mm512_setzero_ps(); }
V_FN vf v_set1(float x) { return _mm512_set1_ps(x); }
V_FN vf v_load(const float *p) { return _mm512_loadu_ps(p); }
V_FN void v_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
V_FN vf v_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(v_first(n), p); }
V_FN void v_store_n(float *p, vf a, int n) { _mm512_mask_storeu_ps(p, v_first(n), a); }

/* ---- arithmetic: v_fma is a * b + c, v_fnma is c - a * b ------------------------- */
V_FN vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
V_FN vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
V_FN vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
V_FN vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
V_FN vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
V_FN vf v_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
V_FN vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
V_FN vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
V_FN vf v_abs(vf a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }

/* ---- yes or no: comparisons with NaN are no -------------------------------------- */
V_FN vm v_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
V_FN vm v_not_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }
V_FN vm m_from_bits(uint64_t bits) { return (__mmask16)bits; }
V_FN uint64_t m_to_bits(vm m) { return m; }
V_FN vf v_select(vm m, vf yes, vf no) { return _mm512_mask_blend_ps(m, no, yes); }
V_FN vf v_fma_if(vm m, vf a, vf b, vf c) { return _mm512_mask3_fmadd_ps(a, b, c, m); }

/* ---- powers of two: t rounded to a whole number, ties to even, |t| < 2^22, and the
 *      same as n, in a form for v_scale; p * 2^n where m, else 0, -126 <= n <= 127 */
V_FN vf v_round(vf t, vf *n)
{
    *n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return *n;
}
V_FN vf v_split(vm m, vf t, vf *n)
{
    return _mm512_maskz_sub_ps(m, t, v_round(t, n)); /* a masked lane raises nothing */
}
V_FN vf v_scale(vm m, vf p, vf n) { return _mm512_maskz_scalef_ps(m, p, n); }
/* ---- bits: x with the sign of s */
V_FN vf v_copysign(vf x, vf s)
{
    vf sign = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(sign, x), _mm512_and_ps(sign, s));
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
V_FN float v_sum16(const vf v[1])
{
    __m256 low = _mm512_castps512_ps256(v[0]), high = _mm512_extractf32x8_ps(v[0], 1);
    __m256 s8 = _mm256_add_ps(low, high);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
V_FN float v_max16(const vf v[1])
{
    __m256 low = _mm512_castps512_ps256(v[0]), high = _mm512_extractf32x8_ps(v[0], 1);
    __m256 m8 = _mm256_max_ps(low, high);
    __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
    __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
    return _mm_cvtss_f32(_mm_max_ss(m2, _mm_shuffle_ps(m2, m2, 1)));
}
/* Each four lanes of four vectors are a square: transposed, each in its place. */
V_FN void v_transpose_fours(vf v[4])
{
    vf a = _mm512_unpacklo_ps(v[0], v[1]), b = _mm512_unpackhi_ps(v[0], v[1]);
    vf c = _mm512_unpacklo_ps(v[2], v[3]), d = _mm512_unpackhi_ps(v[2], v[3]);
    v[0] = _mm512_shuffle_ps(a, c, 0x44);
    v[1] = _mm512_shuffle_ps(a, c, 0xee);
    v[2] = _mm512_shuffle_ps(b, d, 0x44);
    v[3] = _mm512_shuffle_ps(b, d, 0xee);
}
/* the fours, then they change places */
V_FN void v_transpose(vf v[16])
{
    for (int i = 0; i < 16; i += 4) { v_transpose_fours(v + i); }
    for (int i = 0; i < 4; i++) {
        vf p = _mm512_shuffle_f32x4(v[i], v[i + 4], 0x88);
        vf q = _mm512_shuffle_f32x4(v[i], v[i + 4], 0xdd);
        vf r = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0x88);
        vf s = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0xdd);
        v[i] = _mm512_shuffle_f32x4(p, r, 0x88);
        v[i + 4] = _mm512_shuffle_f32x4(q, s, 0x88);
        v[i + 8] = _mm512_shuffle_f32x4(p, r, 0xdd);
        v[i + 12] = _mm512_shuffle_f32x4(q, s, 0xdd);
    }
}
/* two vectors of halves, one of quarters, one that holds all four sums */
V_FN void v_fma_sums16(float to[4], float factor, const vf v[1][4])
{
    const vf *u = v[0];
    vf a = _mm512_add_ps(_mm512_shuffle_f32x4(u[0], u[1], 0x44),
                         _mm512_shuffle_f32x4(u[0], u[1], 0xee));
    vf b = _mm512_add_ps(_mm512_shuffle_f32x4(u[2], u[3], 0x44),
                         _mm512_shuffle_f32x4(u[2], u[3], 0xee));
    vf s4 = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88),
                          _mm512_shuffle_f32x4(a, b, 0xdd));
    vf s2 = _mm512_add_ps(s4, _mm512_permute_ps(s4, 0xee));
    vf s1 = _mm512_add_ps(s2, _mm512_permute_ps(s2, 0x55));
    const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                            0, 0);
    __m128 sum = _mm512_castps512_ps128(_mm512_permutexvar_ps(first, s1));
    _mm_storeu_ps(to, _mm_fmadd_ps(sum, _mm_set1_ps(factor), _mm_loadu_ps(to)));
}
