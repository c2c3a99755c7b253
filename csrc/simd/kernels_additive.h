/*
 * kernels_additive.h -- sum_h w_h tanh(a_h + b_h) without a tensor of M x N x H
 * anything.
 *
 * What decides: one tanh costs a dozen multiply-adds, but tanh(a + b) of operands that
 * were transformed once costs one division, and two hidden units can share it,
 *     n0/d0 + n1/d1 = (n0 d1 + n1 d0) / (d0 d1).
 * The four regimes (kernels.h) differ in n and d only; see additive_regime for the
 * ranges. In the exp form d <= 2^60 (clamped) or e^43.6 (small enough unclamped), so d0
 * d1 is finite.
 */

/* Adds the terms of hidden units 0 and 1 to acc. */
V_FN vf
additive_pair(additive_regime regime, vf acc, vf a0, vf a1, vf b0, vf b1, vf w0, vf w1)
{
    const vf one = v_set1(1.0f), most = v_set1(0x1p60f);
    vf d0, d1, n0 = w0, n1 = w1;
    if (regime == ADDITIVE_DIRECT) {
        acc = v_fma(w0, v_tanh(v_add(a0, b0)), acc);
        return v_fma(w1, v_tanh(v_add(a1, b1)), acc);
    }
    if (regime == ADDITIVE_CLAMPED) {
        d0 = v_add(one, v_min(most, v_mul(a0, b0)));
        d1 = v_add(one, v_min(most, v_mul(a1, b1)));
    } else {
        d0 = v_fma(a0, b0, one);
        d1 = v_fma(a1, b1, one);
    }
    if (regime == ADDITIVE_SMALL) {
        n0 = v_mul(w0, v_add(a0, b0));
        n1 = v_mul(w1, v_add(a1, b1));
    }
    return v_add(acc, v_div(v_fma(n0, d1, v_mul(n1, d0)), v_mul(d0, d1)));
}

/* mr keys by nv vectors of lanes; S, A, B at the tile's first key and lane. */
V_FN void
additive_block(int mr, int nv, additive_regime regime, float *S, const float *A,
               const float *B, const float *w, float bias, int lanes, int64_t H,
               const uint64_t *live, int lane)
{
    vf acc[4][2];
    for (int i = 0; i < mr; i++) {
        for (int j = 0; j < nv; j++) {
            acc[i][j] = v_set1(bias);
        }
    }
    for (int64_t h = 0; h < H; h += 2) {
        vf w0 = v_set1(w[h]), w1 = v_set1(w[h + 1]), a0[2], a1[2];
        UNROLL
        for (int j = 0; j < nv; j++) {
            a0[j] = v_load(A + h * lanes + j * VLEN);
            a1[j] = v_load(A + (h + 1) * lanes + j * VLEN);
        }
        UNROLL
        for (int i = 0; i < mr; i++) {
            vf b0 = v_set1(B[i * H + h]), b1 = v_set1(B[i * H + h + 1]);
            UNROLL
            for (int j = 0; j < nv; j++) {
                acc[i][j] = additive_pair(regime, acc[i][j], a0[j], a1[j], b0, b1, w0,
                                          w1);
            }
        }
    }
    for (int i = 0; i < mr; i++) {
        for (int j = 0; j < nv; j++) {
            float *s = S + i * lanes + j * VLEN;
            vf r = acc[i][j];
            if (live != NULL) {
                r = v_select(live_lanes(live, i, lane + j * VLEN), r, v_load(s));
            }
            v_store(s, r);
        }
    }
}

V_FN void
additive_rows(int nv, additive_regime regime, float *S, const float *A, const float *B,
              const float *w, float bias, int lanes, int rows, int64_t H,
              const uint64_t *live, int lane)
{
    enum { MR = TILE_ROWS / 2 };
    int i = 0;
    for (; i + MR <= rows; i += MR) {
        additive_block(MR, nv, regime, S + i * lanes, A, B + i * H, w, bias, lanes, H,
                       live == NULL ? NULL : live + i, lane);
    }
    for (; i < rows; i++) {
        additive_block(1, nv, regime, S + i * lanes, A, B + i * H, w, bias, lanes, H,
                       live == NULL ? NULL : live + i, lane);
    }
}

V_FN void
additive_lanes(additive_regime regime, float *S, const float *A, const float *B,
               const float *w, float bias, int lanes, int rows, int64_t H,
               const uint64_t *live)
{
    int l = 0;
    for (; l + 2 * VLEN <= lanes; l += 2 * VLEN) {
        additive_rows(2, regime, S + l, A + l, B, w, bias, lanes, rows, H, live, l);
    }
    if (l < lanes) {
        additive_rows(1, regime, S + l, A + l, B, w, bias, lanes, rows, H, live, l);
    }
}

static void
additive_tile(float *S, const float *A, const float *B, const float *w, float bias,
              int lanes, int rows, int64_t H, additive_regime regime,
              const uint64_t *live)
{
    switch (regime) {
    case ADDITIVE_SMALL:
        additive_lanes(ADDITIVE_SMALL, S, A, B, w, bias, lanes, rows, H, live);
        break;
    case ADDITIVE_EXP:
        additive_lanes(ADDITIVE_EXP, S, A, B, w, bias, lanes, rows, H, live);
        break;
    case ADDITIVE_CLAMPED:
        additive_lanes(ADDITIVE_CLAMPED, S, A, B, w, bias, lanes, rows, H, live);
        break;
    case ADDITIVE_DIRECT:
        additive_lanes(ADDITIVE_DIRECT, S, A, B, w, bias, lanes, rows, H, live);
        break;
    }
}

/* ---- backward: forward was score = sum_h w_h t_h, t = tanh(a + b), so now
 *      da_h = w_h sum_keys G (1 - t^2),  db_h = w_h sum_queries G (1 - t^2),
 *      dw_h = sum G t.
 * t is computed again: loading it would cost 4 bytes a triple, more time than
 * computing it. */

/* t = tanh(a + b) and its slope 1 - t^2. In the exp form, with p = A B and r = 1 / (1
 * + p), t = 1 - 2r and 1 - t^2 = 4 r (p r): nothing cancels however near t is to 1 or
 * -1, where 1 - t^2 computed from t would have hardly a digit. */
V_FN vf
tanh_and_slope(additive_regime regime, vf a, vf b, vf *slope)
{
    const vf one = v_set1(1.0f), two = v_set1(2.0f);
    if (regime == ADDITIVE_EXP || regime == ADDITIVE_CLAMPED) {
        vf p = v_mul(a, b);
        p = regime == ADDITIVE_CLAMPED ? v_min(v_set1(0x1p60f), p) : p;
        vf r = v_div(two, v_add(one, p));
        *slope = v_mul(r, v_mul(p, r));
        return v_sub(one, r);
    }
    if (regime == ADDITIVE_DIRECT) {
        return v_tanh_and_slope(v_add(a, b), slope);
    }
    vf t = v_div(v_add(a, b), v_fma(a, b, one));
    *slope = v_fnma(t, t, one);
    return t;
}

/* One hidden unit: nv vectors of lanes (1 or 2 groups of 16), all keys of the tile. */
V_FN void
additive_unit_backward(int nv, bool all, additive_regime regime, float *dA, float *C,
                       float *dB, const float *A, const float *B, const float *G,
                       int lanes, int rows, int64_t H, const uint64_t *live)
{
    vf a[2 * GROUP], da[2 * GROUP], c[2 * GROUP];
    UNROLL
    for (int j = 0; j < nv; j++) {
        a[j] = v_load(A + j * VLEN);
        da[j] = c[j] = v_zero();
    }
    for (int i = 0; i < rows; i++) {
        vf b = v_set1(B[i * H]), db[GROUP];
        UNROLL
        for (int j = 0; j < GROUP; j++) {
            db[j] = v_zero();
        }
        UNROLL
        for (int j = 0; j < nv; j++) {
            vf g = v_load(G + i * lanes + j * VLEN), slope;
            vf t = tanh_and_slope(regime, a[j], b, &slope);
            if (all) {
                c[j] = v_fma(g, t, c[j]);
                da[j] = v_fma(g, slope, da[j]);
                db[j % GROUP] = v_fma(g, slope, db[j % GROUP]);
            } else {
                vm m = m_from_bits(live[i] >> (j * VLEN));
                c[j] = v_fma_if(m, g, t, c[j]);
                da[j] = v_fma_if(m, g, slope, da[j]);
                db[j % GROUP] = v_fma_if(m, g, slope, db[j % GROUP]);
            }
        }
        dB[i * H] += v_sum16(db);
    }
    UNROLL
    for (int j = 0; j < nv; j++) {
        v_store(dA + j * VLEN, v_add(v_load(dA + j * VLEN), da[j]));
        v_store(C + j * VLEN, v_add(v_load(C + j * VLEN), c[j]));
    }
}

V_FN void
additive_units_backward(int nv, additive_regime regime, float *dA, float *C, float *dB,
                        const float *A, const float *B, const float *G, int lanes,
                        int rows, int64_t H, const uint64_t *live)
{
    for (int64_t h = 0; h < H; h++) {
        int64_t at = h * lanes;
        if (live == NULL) {
            additive_unit_backward(nv, true, regime, dA + at, C + at, dB + h, A + at,
                                   B + h, G, lanes, rows, H, live);
        } else {
            additive_unit_backward(nv, false, regime, dA + at, C + at, dB + h, A + at,
                                   B + h, G, lanes, rows, H, live);
        }
    }
}

static void
additive_tile_backward(float *dA, float *C, float *dB, const float *A, const float *B,
                       const float *G, int lanes, int rows, int64_t H,
                       additive_regime regime, const uint64_t *live)
{
#define UNITS(nv, regime) \
    additive_units_backward(nv, regime, dA, C, dB, A, B, G, lanes, rows, H, live)
    bool two = lanes > 16;
    switch (regime) {
    case ADDITIVE_SMALL:
        two ? UNITS(2 * GROUP, ADDITIVE_SMALL) : UNITS(GROUP, ADDITIVE_SMALL);
        break;
    case ADDITIVE_EXP:
        two ? UNITS(2 * GROUP, ADDITIVE_EXP) : UNITS(GROUP, ADDITIVE_EXP);
        break;
    case ADDITIVE_CLAMPED:
        two ? UNITS(2 * GROUP, ADDITIVE_CLAMPED) : UNITS(GROUP, ADDITIVE_CLAMPED);
        break;
    case ADDITIVE_DIRECT:
        two ? UNITS(2 * GROUP, ADDITIVE_DIRECT) : UNITS(GROUP, ADDITIVE_DIRECT);
        break;
    }
#undef UNITS
}

/* ---- the operands' forms --------------------------------------------------------- */

static void
exp_form(float *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += VLEN) {
        int k = lanes_left(n - i);
        v_store_n(out + i, v_exp(v_mul(v_set1(2.0f), v_load_n(x + i, k))), k);
    }
}

static void
tanh_form(float *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += VLEN) {
        int k = lanes_left(n - i);
        v_store_n(out + i, v_tanh(v_load_n(x + i, k)), k);
    }
}

static void
add_bias_absmax(float *A, const float *bias, float *top, int lanes, int64_t H)
{
    for (int l = 0; l < lanes; l += VLEN) {
        vf most = v_zero();
        for (int64_t h = 0; h < H; h++) {
            float *a = A + h * lanes + l;
            vf sum = bias != NULL ? v_add(v_load(a), v_set1(bias[h])) : v_load(a);
            most = v_max(v_abs(sum), most);
            v_store(a, sum);
        }
        v_store(top + l, most);
    }
}
