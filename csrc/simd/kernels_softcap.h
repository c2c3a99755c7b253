/*
 * kernels_softcap.h -- scores under a cap: c tanh(s / c) within 2.5 ulp, and its slope 1 -
 * tanh^2 within 4.2 ulp of that at s / c as rounded.
 *
 * Two formulas as in v_tanh, but for s itself instead of x = s / c: nothing is lost by
 * dividing by c and multiplying again, and far below the cap s stays what it is. Above,
 * with e = e^-2|x| and g = 2 e / (1 + e), tanh |x| = 1 - g and its slope is 4 e / (1 +
 * e)^2: nothing cancels, and unlike e^2|x| this needs no bound on x. Below, |x| counts as at
 * most 1, because the polynomial of an infinite s / c would be inf - inf (FE_INVALID).
 */

V_FN vf
softcap_and_slope(vf s, vf cap, vf inv, vf *slope)
{
    const vf one = v_set1(1.0f), two = v_set1(2.0f);
    vf a = v_abs(v_mul(s, inv)), near = v_min(one, a), z = v_mul(near, near);
    vf e = v_exp(v_mul(v_set1(-2.0f), a));
    vf r = v_div(one, v_add(one, e)), g = v_mul(v_mul(two, e), r);
    vf t = v_tanh_near(near, z);
    vm far = v_not_lt(a, v_set1(TANH_NEAR));
    *slope = v_select(far, v_mul(v_mul(two, g), r), v_fnma(t, t, one));
    return v_select(far, v_copysign(v_fnma(cap, g, cap), s), v_tanh_near(s, z));
}

static void
softcap(float *S, float *slope, int64_t n, float cap, float inv)
{
    for (int64_t i = 0; i < n; i += VLEN) {
        int k = lanes_left(n - i);
        vf s = k == VLEN ? v_load(S + i) : v_load_n(S + i, k), d;
        s = softcap_and_slope(s, v_set1(cap), v_set1(inv), &d);
        v_store_n(S + i, s, k);
        if (slope != NULL) {
            v_store_n(slope + i, v_max(d, v_zero()), k); /* NaN: 0 */
        }
    }
}
