/*
 * kernels_live.h -- from what a mask says to live words.
 *
 * Masks lie in memory key by key and live words hold lane by lane: a row of the mask
 * becomes 64 bits at a time, and the bits of 64 rows are transposed. Measured with
 * AVX-512, 32 rows of 128 keys: 0.35 us; a row's bits put into each key's word one by
 * one, in loops the compiler vectorises: 1.6 us.
 */
#include <float.h>

enum { WORD = 64 };

/* In all squares of 2n x 2n bits, the upper right n x n changes places with the lower
 * left; `low` has the low n bits of every 2n set. */
V_FN void
swap_squares(uint64_t a[WORD], int n, uint64_t low)
{
    for (int i = 0; i < WORD; i += 2 * n) {
        UNROLL
        for (int k = i; k < i + n; k++) {
            uint64_t swap = ((a[k] >> n) ^ a[k + n]) & low;
            a[k] ^= swap << n;
            a[k + n] ^= swap;
        }
    }
}

/* Bit i of a[l] changes places with bit l of a[i]. */
V_FN void
transpose_bits(uint64_t a[WORD])
{
    swap_squares(a, 32, 0x00000000ffffffff);
    swap_squares(a, 16, 0x0000ffff0000ffff);
    swap_squares(a, 8, 0x00ff00ff00ff00ff);
    swap_squares(a, 4, 0x0f0f0f0f0f0f0f0f);
    swap_squares(a, 2, 0x3333333333333333);
    swap_squares(a, 1, 0x5555555555555555);
}

/* Bit i: bytes[i] is not 0, i < 8. */
V_FN uint64_t
nonzero_bits8(const uint8_t *p)
{
    const uint64_t ones = 0x0101010101010101;
    uint64_t x = (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 |
                 (uint64_t)p[3] << 24 | (uint64_t)p[4] << 32 | (uint64_t)p[5] << 40 |
                 (uint64_t)p[6] << 48 | (uint64_t)p[7] << 56;
    x |= x >> 4 & ones * 15; /* each byte folded to its lowest bit */
    x |= x >> 2 & ones * 3;
    x = (x | (x >> 1 & ones)) & ones;
    return (x * 0x0102040810204080) >> 56;
}

/* Bit i: bytes[i] is not 0, i < n <= 64. */
V_FN uint64_t
nonzero_bits(const uint8_t *bytes, int n)
{
    uint64_t bits = 0;
    int i = 0;
    if (n == WORD) {
        return v_nonzero64(bytes);
    }
    for (; i + 8 <= n; i += 8) {
        bits |= nonzero_bits8(bytes + i) << i;
    }
    for (; i < n; i++) {
        bits |= (uint64_t)(bytes[i] != 0) << i;
    }
    return bits;
}

/* Bit i: numbers[i] is not -inf, i < n <= 64. A NaN is not less than anything. */
V_FN uint64_t
allowed_bits(const float *numbers, int n)
{
    uint64_t forbidden = 0;
    for (int i = 0; i < n; i += VLEN) {
        bool whole = n - i >= VLEN;
        vf x = whole ? v_load(numbers + i) : v_load_n(numbers + i, n - i);
        forbidden |= m_to_bits(v_lt(x, v_set1(-FLT_MAX))) << i;
    }
    return ~forbidden;
}

static void
live_bytes(uint64_t *live, const uint8_t *bytes, int64_t stride, int rows, int keys)
{
    for (int i = 0; i < keys; i += WORD) {
        uint64_t words[WORD] = {0};
        int n = keys - i < WORD ? keys - i : WORD;
        for (int l = 0; l < rows; l++) {
            words[l] = nonzero_bits(bytes + l * stride + i, n);
        }
        transpose_bits(words);
        for (int k = 0; k < n; k++) {
            live[i + k] &= words[k];
        }
    }
}

static void
live_floats(uint64_t *live, const float *numbers, int64_t stride, int rows, int keys)
{
    for (int i = 0; i < keys; i += WORD) {
        uint64_t words[WORD] = {0};
        int n = keys - i < WORD ? keys - i : WORD;
        for (int l = 0; l < rows; l++) {
            words[l] = allowed_bits(numbers + l * stride + i, n);
        }
        transpose_bits(words);
        for (int k = 0; k < n; k++) {
            live[i + k] &= words[k];
        }
    }
}

/* Elements j, ..., j + 63 of a row of n, j < n: the live ones as bits. */
V_FN uint64_t
live_word(const uint8_t *mask, int64_t j, int64_t n)
{
    int left = n - j < WORD ? (int)(n - j) : WORD;
    return mask != NULL ? nonzero_bits(mask + j, left) : ~(uint64_t)0 >> (WORD - left);
}
