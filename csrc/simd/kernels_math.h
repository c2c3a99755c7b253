/*
 * kernels_math.h -- exp and tanh in the vocabulary.
 *
 * The coefficients come from the Remez exchange in fit_polynomials.py, which also
 * prints the errors stated here.
 */

/* Powers are raised of n <= TOGETHER vectors, step by step: each is a chain of some 55
 * cycles, and one chain after the other leaves the pipes half empty, as the CPU looks no
 * further ahead than two or three. A loop for each step: what the compiler is given
 * together it leaves together, and half of the gain is gone. Zen 3, rows of 512 in a
 * cache: 1.2 -> 0.76 ns a number; two at once 0.86. Softmax of a tile: 10.6 -> 9.7 cycles
 * a vector. */
enum { TOGETHER = VLEN == 1 ? 16 : 4 };

/* p = 2^f, |f| <= 1/2: degree 6 with constant term 1, relative error 2.0e-9 before
 * rounding. */
V_FN void
v_exp2_fractions(int n, vf *p, const vf *f)
{
    static const float coefficients[] = {0x1.5f3e52p-10f, 0x1.3b2d4cp-7f,
                                         0x1.c6aee8p-5f,  0x1.ebfbdcp-3f,
                                         0x1.62e43p-1f,   1.0f};
    UNROLL
    for (int i = 0; i < n; i++) {
        p[i] = v_set1(0x1.41fbbcp-13f);
    }
    UNROLL
    for (int k = 0; k < 6; k++) {
        UNROLL
        for (int i = 0; i < n; i++) {
            p[i] = v_fma(p[i], f[i], v_set1(coefficients[k]));
        }
    }
}

/* t = 2^t within 1 ulp. Results below 2^-126 are exactly 0, t above 127 counts as 127, NaN
 * stays NaN. Where the result is 0, t may be -inf, as the score of a masked key is: v_split
 * does not take -inf less -inf, which is invalid (FE_INVALID). */
V_FN void
v_exp2_all(int n, vf *t)
{
    vf power[TOGETHER], f[TOGETHER], p[TOGETHER];
    vm counts[TOGETHER];
    UNROLL
    for (int i = 0; i < n; i++) {
        t[i] = v_min(v_set1(127.0f), t[i]);
        counts[i] = v_not_lt(t[i], v_set1(-126.0f));
    }
    UNROLL
    for (int i = 0; i < n; i++) {
        f[i] = v_split(counts[i], t[i], &power[i]);
    }
    v_exp2_fractions(n, p, f);
    UNROLL
    for (int i = 0; i < n; i++) {
        t[i] = v_scale(counts[i], p[i], power[i]);
    }
}

V_FN vf
v_exp2(vf t)
{
    v_exp2_all(1, &t);
    return t;
}

/* x = e^x within 1.15 ulp for x <= 88: x - n ln 2 is taken in two steps, of which the
 * first is exact with or without fused multiply-add (13 bits of ln 2 times 8 of n),
 * and is what 2^f is made of. Whoever has a larger x bounds it himself: softmax has none, and
 * its rows take 14.1 cycles a vector with the bound, 13.1 without (Zen 3). */
V_FN void
v_exp_all(int n, vf *x)
{
    const vf log2e = v_set1(0x1.715476p0f);
    vf t[TOGETHER], power[TOGETHER], f[TOGETHER], p[TOGETHER];
    UNROLL
    for (int i = 0; i < n; i++) {
        x[i] = v_max(v_set1(-88.0f), x[i]); /* not -inf; e^-88 is 0 here */
        t[i] = v_mul(x[i], log2e);
    }
    UNROLL
    for (int i = 0; i < n; i++) {
        f[i] = v_round(t[i], &power[i]);
    }
    UNROLL
    for (int i = 0; i < n; i++) {
        x[i] = v_fnma(f[i], v_set1(0x1.62ep-1f), x[i]);
    }
    UNROLL
    for (int i = 0; i < n; i++) {
        x[i] = v_fnma(f[i], v_set1(0x1.0bfbe8p-15f), x[i]);
    }
    UNROLL
    for (int i = 0; i < n; i++) {
        f[i] = v_mul(x[i], log2e);
    }
    v_exp2_fractions(n, p, f);
    UNROLL
    for (int i = 0; i < n; i++) {
        x[i] = v_scale(v_not_lt(t[i], v_set1(-126.0f)), p[i], power[i]);
    }
}

V_FN vf
v_exp(vf x)
{
    v_exp_all(1, &x);
    return x;
}

/* Where tanh changes from one formula to another: up to here it is x + x z Q(z), z =
 * x^2, with a relative error of 4.1e-9 before rounding. `v_tanh_near(s, z)` is s tanh(x)
 * / x, which loses no digit of s where x is small. */
#define TANH_NEAR 0.625f

V_FN vf
v_tanh_near(vf s, vf z)
{
    vf q = v_set1(-0x1.76ac3p-8f);
    q = v_fma(q, z, v_set1(0x1.5256dcp-6f));
    q = v_fma(q, z, v_set1(-0x1.b8444ap-5f));
    q = v_fma(q, z, v_set1(0x1.110768p-3f));
    q = v_fma(q, z, v_set1(-0x1.555534p-2f));
    return v_fma(v_mul(s, z), q, s);
}

/* tanh x within 2 ulp: above TANH_NEAR it is 1 - r with r = 2 / (1 + e), e = e^2|x|,
 * where nothing cancels; at 43 it is 1 in float32 long since. Its slope 1 - tanh^2 x is r
 * (e r) there, with all its digits however small it is. */
V_FN vf
v_tanh_and_slope(vf x, vf *slope)
{
    vf a = v_abs(x), one = v_set1(1.0f), two = v_set1(2.0f);
    vf small = v_tanh_near(x, v_mul(x, x));
    vf e = v_exp(v_mul(two, v_min(v_set1(43.0f), a)));
    vf r = v_div(two, v_add(one, e));
    vm near = v_lt(a, v_set1(TANH_NEAR));
    *slope = v_select(near, v_fnma(small, small, one), v_mul(r, v_mul(e, r)));
    return v_select(near, small, v_copysign(v_sub(one, r), x));
}

V_FN vf
v_tanh(vf x)
{
    vf slope;
    return v_tanh_and_slope(x, &slope);
}

/* An infinite maximum counts as 0: scores of -inf then get the weight 2^-inf = 0, and
 * a row with a score of +inf is made NaN by whoever finishes the row. */
V_FN vf
finite_or_zero(vf m)
{
    return v_select(v_lt(v_abs(m), v_set1(INFINITY)), m, v_zero());
}

/* A bias counts as at least this: the lowest floats, with which many models mask, would
 * be -inf in units of log2(e). */
#define LOWEST_BIAS -0x1.6p127f
