/*
 * kernels_additive_backward.h -- the gradients of the additive score of a tile.
 *
 * Forward was score = sum_h w_h t_h, t = tanh(b - a), a the pre-activation with the other
 * sign, whose gradient itself is wanted. So now
 *      -da_h = w_h sum_keys G (1 - t^2),  db_h = w_h sum_queries G (1 - t^2),
 *      dw_h = sum G t.
 * t is computed again: loading it would cost 4 bytes a triple, more time than computing
 * it.
 *
 * The exp forms have 1 - t^2 = 4 s (1 - s), s = min(A, B) / (A + B) <= 1/2: nothing
 * cancels, however near t is to 1 or -1, and an error of s counts once at most. A B r^2, r
 * = 2 / (A + B), has the four roundings of r twice: d_queries of 16 hidden units had 1.23
 * times PyTorch's error in place of 1.06.
 */

static void additive_query_backward(float *dA, float *C, float *dB, const float *A,
                                    const float *B, const float *G, int keys, int64_t H,
                                    additive_regime regime, const uint64_t *live);

/* r[u] = 1 / d[u], two of which share a division: less work than four, since all four are
 * wanted, fewer roundings, and denominators may be as large as 2^62. */
V_FN void
reciprocals(vf r[UNITS], const vf d[UNITS])
{
    UNROLL
    for (int u = 0; u < UNITS; u += 2) {
        vf both = v_div(v_set1(1.0f), v_mul(d[u], d[u + 1]));
        r[u] = v_mul(both, d[u + 1]);
        r[u + 1] = v_mul(both, d[u]);
    }
}

V_FN bool
additive_is_exp(additive_regime regime)
{
    return regime == ADDITIVE_EXP || regime == ADDITIVE_LARGE;
}

/* The terms of one pair of a vector of queries and a key, four hidden units: G t goes
 * into c, G (1 - t^2) into da and db. The exp forms leave what is the same in all terms of
 * a sum to the end: the 4 of the slope, and all of t = 1 - 2 A r, r = 1 / (A + B), but G r.
 * In the large one p = B / A has the place of B, and 1 that of A. At p = 2^60, where it is
 * clamped, the slope ends at 2^-58, although t is 1 in float32 long before. */
V_FN void
additive_gradients(additive_regime regime, bool all, vm live, vf c[UNITS], vf da[UNITS],
                   vf db[UNITS], vf g, const vf a[UNITS], const vf b[UNITS])
{
    const bool small = regime == ADDITIVE_SMALL, large = regime == ADDITIVE_LARGE;
    const vf one = v_set1(1.0f);
    vf x[UNITS], y[UNITS], d[UNITS], r[UNITS];
    UNROLL
    for (int u = 0; u < UNITS; u++) {
        x[u] = large ? one : a[u];
        y[u] = large ? v_min(v_set1(0x1p60f), v_mul(a[u], b[u])) : b[u];
        d[u] = small ? v_fnma(x[u], y[u], one) : v_add(x[u], y[u]);
    }
    if (regime != ADDITIVE_DIRECT) {
        reciprocals(r, d);
    }
    UNROLL
    for (int u = 0; u < UNITS; u++) {
        vf of_c, slope;
        if (regime == ADDITIVE_DIRECT) {
            of_c = v_tanh_and_slope(v_sub(y[u], x[u]), &slope);
        } else if (small) {
            of_c = v_mul(v_sub(y[u], x[u]), r[u]);
            slope = v_fnma(of_c, of_c, one);
        } else {
            vf share = v_mul(v_min(x[u], y[u]), r[u]);
            of_c = r[u];
            slope = v_fnma(share, share, share);
        }
        c[u] = all ? v_fma(g, of_c, c[u]) : v_fma_if(live, g, of_c, c[u]);
        da[u] = all ? v_fma(g, slope, da[u]) : v_fma_if(live, g, slope, da[u]);
        db[u] = all ? v_fma(g, slope, db[u]) : v_fma_if(live, g, slope, db[u]);
    }
}

/* What da and db are multiplied by at the end. */
V_FN float
additive_slope_factor(additive_regime regime)
{
    return additive_is_exp(regime) ? 4.0f : 1.0f;
}

/* The sum of G t from c and the sum of G. In lanes whose form is not this regime's A may
 * be infinite, and both are 0. */
V_FN vf
additive_c_sum(additive_regime regime, vf c, vf a, vf g)
{
    vf A = regime == ADDITIVE_EXP ? v_min(a, v_set1(0x1p100f)) : v_set1(1.0f);
    return additive_is_exp(regime) ? v_fnma(v_add(A, A), c, g) : c;
}

/* Keys whose sums across lanes are formed together, later: the division for the next
 * key need not wait for them. 8 % with AVX-512. */
enum { SUM_ROWS = 4 };

/* dB[i][u] += factor times the sum of db[i][.][u] over its lanes, i < rows. */
V_FN void
additive_add_sums(float factor, float *dB, const vf db[SUM_ROWS][GROUP][UNITS],
                  int rows, int64_t H, const uint64_t *live)
{
    for (int i = 0; i < rows; i++) {
        if (live == NULL || live[i] != 0) {
            v_fma_sums16(dB + i * H, factor, db[i]);
        }
    }
}

/* dA += da, with its factor, in one vector of lanes; C += what c and g, the sum of G, make.
 */
V_FN void
additive_add_lanes(additive_regime regime, float *dA, float *C, const vf a[UNITS],
                   const vf da[UNITS], const vf c[UNITS], vf g, int lanes)
{
    UNROLL
    for (int u = 0; u < UNITS; u++) {
        vf factor = v_set1(additive_slope_factor(regime)),
           c_sum = additive_c_sum(regime, c[u], a[u], g);
        v_store(dA + u * lanes, v_fma(da[u], factor, v_load(dA + u * lanes)));
        v_store(C + u * lanes, v_add(v_load(C + u * lanes), c_sum));
    }
}

/* Four hidden units: nv vectors of lanes (1 or 2 groups of 16), all keys of the tile.
 * A key without a live lane is passed over: B may be infinite there. */
V_FN void
additive_units_backward(int nv, bool all, additive_regime regime, float *dA, float *C,
                        float *dB, const float *A, const float *B, const float *G,
                        const vf *g, int lanes, int rows, int64_t H,
                        const uint64_t *live)
{
    vf a[2 * GROUP][UNITS], da[2 * GROUP][UNITS], c[2 * GROUP][UNITS];
    UNROLL_LANES
    for (int j = 0; j < nv; j++) {
        UNROLL
        for (int u = 0; u < UNITS; u++) {
            a[j][u] = additive_a(regime, v_load(A + u * lanes + j * VLEN));
            da[j][u] = c[j][u] = v_zero();
        }
    }
    for (int i0 = 0; i0 < rows; i0 += SUM_ROWS) {
        vf db[SUM_ROWS][GROUP][UNITS];
        int n = rows - i0 < SUM_ROWS ? rows - i0 : SUM_ROWS;
        for (int i = 0; i < n; i++) {
            const float *B_i = B + (i0 + i) * H, *G_i = G + (i0 + i) * lanes;
            uint64_t word = all ? ~(uint64_t)0 : live[i0 + i];
            vf b[UNITS], db_i[GROUP][UNITS];
            if (word == 0) {
                continue;
            }
            UNROLL
            for (int u = 0; u < UNITS; u++) {
                b[u] = v_set1(B_i[u]);
                UNROLL
                for (int j = 0; j < GROUP; j++) {
                    db_i[j][u] = v_zero();
                }
            }
            UNROLL_LANES
            for (int j = 0; j < nv; j++) {
                additive_gradients(regime, all, m_from_bits(word >> (j * VLEN)), c[j],
                                   da[j], db_i[j % GROUP], v_load(G_i + j * VLEN), a[j],
                                   b);
            }
            memcpy(db[i], db_i, sizeof db_i);
        }
        additive_add_sums(additive_slope_factor(regime), dB + i0 * H,
                          (const vf(*)[GROUP][UNITS])db, n, H, all ? NULL : live + i0);
    }
    UNROLL_LANES
    for (int j = 0; j < nv; j++) {
        additive_add_lanes(regime, dA + j * VLEN, C + j * VLEN, a[j], da[j], c[j], g[j],
                           lanes);
    }
}

/* sum_i G[i] of the live pairs of a vector of lanes, whose first is `lane`. */
V_FN vf
sum_over_keys(const float *G, int lanes, int rows, const uint64_t *live, int lane)
{
    vf sum = v_zero();
    for (int i = 0; i < rows; i++) {
        vm m = m_from_bits(live == NULL ? ~(uint64_t)0 : live[i] >> lane);
        sum = v_add(sum, v_select(m, v_load(G + i * lanes), v_zero()));
    }
    return sum;
}

V_FN void
additive_gradient(int nv, additive_regime regime, float *dA, float *C, float *dB,
                  const float *A, const float *B, const float *G, int lanes, int rows,
                  int64_t H, const uint64_t *live)
{
    vf g[2 * GROUP];
    for (int j = 0; j < nv; j++) {
        g[j] = additive_is_exp(regime)
                   ? sum_over_keys(G + j * VLEN, lanes, rows, live, j * VLEN)
                   : v_zero();
    }
    for (int64_t h = 0; h < H; h += UNITS) {
        int64_t at = h * lanes;
        if (live == NULL) {
            additive_units_backward(nv, true, regime, dA + at, C + at, dB + h, A + at,
                                    B + h, G, g, lanes, rows, H, live);
        } else {
            additive_units_backward(nv, false, regime, dA + at, C + at, dB + h, A + at,
                                    B + h, G, g, lanes, rows, H, live);
        }
    }
}

V_FN void
additive_gradient_lanes(additive_regime regime, float *dA, float *C, float *dB,
                        const float *A, const float *B, const float *G, int lanes,
                        int rows, int64_t H, const uint64_t *live)
{
    if (VLEN < 8) { /* registers hold none of it: one instance, any number of vectors */
        additive_gradient(lanes / VLEN, regime, dA, C, dB, A, B, G, lanes, rows, H,
                          live);
    } else if (lanes > 16) {
        additive_gradient(2 * GROUP, regime, dA, C, dB, A, B, G, lanes, rows, H, live);
    } else {
        additive_gradient(GROUP, regime, dA, C, dB, A, B, G, lanes, rows, H, live);
    }
}

static void
additive_tile_backward(float *dA, float *C, float *dB, const float *A, const float *B,
                       const float *G, int lanes, int rows, int64_t H,
                       additive_regime regime, const uint64_t *live)
{
    if (lanes == 1) {
        additive_query_backward(dA, C, dB, A, B, G, rows, H, regime, live);
        return;
    }
#define GRADIENT(regime) \
    additive_gradient_lanes(regime, dA, C, dB, A, B, G, lanes, rows, H, live)
    switch (regime) {
    case ADDITIVE_SMALL:
        GRADIENT(ADDITIVE_SMALL);
        break;
    case ADDITIVE_EXP:
        GRADIENT(ADDITIVE_EXP);
        break;
    case ADDITIVE_LARGE:
        GRADIENT(ADDITIVE_LARGE);
        break;
    case ADDITIVE_DIRECT:
        GRADIENT(ADDITIVE_DIRECT);
        break;
    }
#undef GRADIENT
}
