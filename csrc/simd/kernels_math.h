/*
 * kernels_math.h -- exp and tanh in the vocabulary.
 *
 * The coefficients come from the Remez exchange in fit_polynomials.py, which also
 * prints the errors stated here.
 */

/* 2^f, |f| <= 1/2: degree 6 with constant term 1, relative error 2.0e-9 before
 * rounding. */
V_FN vf
v_exp2_fraction(vf f)
{
    vf p = v_set1(0x1.41fbbcp-13f);
    p = v_fma(p, f, v_set1(0x1.5f3e52p-10f));
    p = v_fma(p, f, v_set1(0x1.3b2d4cp-7f));
    p = v_fma(p, f, v_set1(0x1.c6aee8p-5f));
    p = v_fma(p, f, v_set1(0x1.ebfbdcp-3f));
    p = v_fma(p, f, v_set1(0x1.62e43p-1f));
    return v_fma(p, f, v_set1(1.0f));
}

/* 1.5 * 2^23 + 127. Adding it to t rounds t to an integer n, ties to even, and leaves
 * n + 127, the exponent field of 2^n, in the low bits of the sum. */
V_FN vf
v_magic(void)
{
    return v_set1(0x1.8p23f + 127.0f);
}

/* 2^t within 1 ulp. Results below 2^-126 are exactly 0, t above 127 counts as 127, NaN
 * stays NaN. */
V_FN vf
v_exp2(vf t)
{
    vf u = v_min(v_set1(127.0f), t), z = v_add(u, v_magic());
    vf f = v_sub(u, v_sub(z, v_magic()));
    vf r = v_mul(v_exp2_fraction(f), v_shift_to_exponent(z));
    return v_select(v_lt(t, v_set1(-126.0f)), v_zero(), r);
}

/* e^x within 1.15 ulp for x <= 87: x - n ln 2 is taken in two steps, of which the
 * first is exact with or without fused multiply-add (13 bits of ln 2 times 8 of n),
 * and is what 2^f is made of. */
V_FN vf
v_exp(vf x)
{
    const vf log2e = v_set1(0x1.715476p0f);
    vf t = v_mul(x, log2e), z = v_add(v_min(v_set1(127.0f), t), v_magic());
    vf n = v_sub(z, v_magic());
    vf rest = v_fnma(n, v_set1(0x1.62ep-1f), x);
    rest = v_fnma(n, v_set1(0x1.0bfbe8p-15f), rest);
    vf r = v_mul(v_exp2_fraction(v_mul(rest, log2e)), v_shift_to_exponent(z));
    return v_select(v_lt(t, v_set1(-126.0f)), v_zero(), r);
}

/* tanh x within 2 ulp: x + x^3 Q(x^2) below 0.625 (relative error 4.1e-9 before
 * rounding), 1 - r with r = 2 / (1 + e), e = e^2|x|, above, where nothing cancels; at
 * 43 it is 1 in float32 long since. Its slope 1 - tanh^2 x is r (e r) there, with all
 * its digits however small it is. */
V_FN vf
v_tanh_and_slope(vf x, vf *slope)
{
    vf z = v_mul(x, x), a = v_abs(x), one = v_set1(1.0f), two = v_set1(2.0f);
    vf q = v_set1(-0x1.76ac3p-8f);
    q = v_fma(q, z, v_set1(0x1.5256dcp-6f));
    q = v_fma(q, z, v_set1(-0x1.b8444ap-5f));
    q = v_fma(q, z, v_set1(0x1.110768p-3f));
    q = v_fma(q, z, v_set1(-0x1.555534p-2f));
    vf small = v_fma(v_mul(x, z), q, x);
    vf e = v_exp(v_mul(two, v_min(v_set1(43.0f), a)));
    vf r = v_div(two, v_add(one, e));
    vm near = v_lt(a, v_set1(0.625f));
    *slope = v_select(near, v_fnma(small, small, one), v_mul(r, v_mul(e, r)));
    return v_select(near, small, v_copysign(v_sub(one, r), x));
}

V_FN vf
v_tanh(vf x)
{
    vf slope;
    return v_tanh_and_slope(x, &slope);
}
