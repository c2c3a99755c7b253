/*
 * kernels_additive.h -- sum_h w_h tanh(b_h - a_h) without a tensor of M x N x H
 * anything; a is the query's pre-activation with the other sign.
 *
 * What decides: one tanh costs a dozen multiply-adds, but tanh(b - a) of operands that
 * were transformed once costs one division, and four hidden units share it,
 *     n0/d0 + n1/d1 = (n0 d1 + n1 d0) / (d0 d1),  and two such sums once more:
 * 18 operations and a division, which on Intel CPUs takes about as long as they do.
 * The regimes (kernels.h) differ in n and d, and in how many share the division.
 *
 * The exp form is tanh = (B - A) / (B + A) with A = e^2a, B = e^2b. Writing it as 1 - 2
 * A / (B + A) would save the numerators, 4 operations of 18, and the constants, sum_h
 * w_h, would cancel only after sums as large as sum_h |w_h| were rounded: twice the
 * error of scores of 16 hidden units. The product of four denominators, A + B <= 2^27
 * for |a|, |b| <= 9, is below 2^108 and above 2^-100. In the large regime p = B / A
 * takes the place of B, and 1 that of A: p has the range of float32 up to |a|, |b| =
 * 21.8, and is clamped at 2^28, where four denominators have the product 2^112. So the
 * numerators, at most 4 |w| d^4, are finite up to |w| = 2^13.
 */

enum {
    UNITS = 4,     /* hidden units that share one division */
    SCORE_ROWS = 8 /* keys that a vector of queries' A is loaded for, forward */
};

/* One lane: kernels_additive_query.h. */
static void additive_query(float *S, const float *A, const float *B, const float *w,
                           int keys, int64_t H, additive_regime regime,
                           const uint64_t *live);
static void additive_query_backward(float *dA, float *C, float *dB, const float *A,
                                    const float *B, const float *G, int keys, int64_t H,
                                    additive_regime regime, const uint64_t *live);
static float negate_query(float *A, const float *bias, int64_t H);

/* A vector of A, as the regime's terms take it: the large one divides by it. */
V_FN vf
additive_a(additive_regime regime, vf a)
{
    return regime == ADDITIVE_LARGE ? v_div(v_set1(1.0f), a) : a;
}

/* n0/d0 + n1/d1 + n2/d2 + n3/d3 */
V_FN vf
sum_of_quotients(const vf n[UNITS], const vf d[UNITS])
{
    vf n01 = v_fma(n[0], d[1], v_mul(n[1], d[0])), d01 = v_mul(d[0], d[1]);
    vf n23 = v_fma(n[2], d[3], v_mul(n[3], d[2])), d23 = v_mul(d[2], d[3]);
    return v_div(v_fma(n01, d23, v_mul(n23, d01)), v_mul(d01, d23));
}

/* Adds the terms of four hidden units to acc: takes off w tanh(a - b). wa = w a, which
 * is the same for several keys, or for several queries' lanes. */
V_FN vf
additive_terms(additive_regime regime, vf acc, const vf a[UNITS], const vf b[UNITS],
               const vf w[UNITS], const vf wa[UNITS])
{
    const vf one = v_set1(1.0f);
    vf n[UNITS], d[UNITS];
    UNROLL
    for (int u = 0; u < UNITS; u++) {
        if (regime == ADDITIVE_DIRECT) {
            acc = v_fnma(w[u], v_tanh(v_sub(a[u], b[u])), acc);
        } else if (regime == ADDITIVE_SMALL) {
            d[u] = v_fnma(a[u], b[u], one);
            n[u] = v_mul(w[u], v_sub(a[u], b[u]));
        } else if (regime == ADDITIVE_LARGE) {
            vf p = v_min(v_set1(0x1p28f), v_mul(a[u], b[u]));
            d[u] = v_add(one, p);
            n[u] = v_fnma(w[u], p, w[u]);
        } else {
            d[u] = v_add(a[u], b[u]);
            n[u] = v_fnma(w[u], b[u], wa[u]);
        }
    }
    return regime == ADDITIVE_DIRECT ? acc : v_sub(acc, sum_of_quotients(n, d));
}

/* mr keys by one vector of lanes; S, A, B at the tile's first key and lane. Two vectors
 * at a time are no faster with AVX-512 and leave AVX2 without registers. */
V_FN void
additive_block(int mr, additive_regime regime, float *S, const float *A, const float *B,
               const float *w, int lanes, int64_t H, const uint64_t *live, int lane)
{
    vf acc[SCORE_ROWS];
    UNROLL
    for (int i = 0; i < mr; i++) {
        acc[i] = v_zero();
    }
    for (int64_t h = 0; h < H; h += UNITS) {
        vf a[UNITS], b[UNITS], w_h[UNITS], wa[UNITS];
        UNROLL
        for (int u = 0; u < UNITS; u++) {
            a[u] = additive_a(regime, v_load(A + (h + u) * lanes));
            w_h[u] = v_set1(w[h + u]);
            wa[u] = v_mul(w_h[u], a[u]);
        }
        UNROLL
        for (int i = 0; i < mr; i++) {
            UNROLL
            for (int u = 0; u < UNITS; u++) {
                b[u] = v_set1(B[i * H + h + u]);
            }
            acc[i] = additive_terms(regime, acc[i], a, b, w_h, wa);
        }
    }
    UNROLL
    for (int i = 0; i < mr; i++) {
        float *s = S + i * lanes;
        bool all = live == NULL;
        v_store(s,
                all ? acc[i] : v_select(live_lanes(live, i, lane), acc[i], v_load(s)));
    }
}

V_FN void
additive_scores(additive_regime regime, float *S, const float *A, const float *B,
                const float *w, int lanes, int rows, int64_t H, const uint64_t *live)
{
    for (int l = 0; l < lanes; l += VLEN) {
        int i = 0;
        for (; i + SCORE_ROWS <= rows; i += SCORE_ROWS) {
            additive_block(SCORE_ROWS, regime, S + i * lanes + l, A + l, B + i * H, w,
                           lanes, H, live == NULL ? NULL : live + i, l);
        }
        for (; i < rows; i++) {
            additive_block(1, regime, S + i * lanes + l, A + l, B + i * H, w, lanes, H,
                           live == NULL ? NULL : live + i, l);
        }
    }
}

static void
additive_tile(float *S, const float *A, const float *B, const float *w, int lanes,
              int rows, int64_t H, additive_regime regime, const uint64_t *live)
{
    if (lanes == 1) {
        additive_query(S, A, B, w, rows, H, regime, live);
        return;
    }
    switch (regime) {
    case ADDITIVE_SMALL:
        additive_scores(ADDITIVE_SMALL, S, A, B, w, lanes, rows, H, live);
        break;
    case ADDITIVE_EXP:
        additive_scores(ADDITIVE_EXP, S, A, B, w, lanes, rows, H, live);
        break;
    case ADDITIVE_LARGE:
        additive_scores(ADDITIVE_LARGE, S, A, B, w, lanes, rows, H, live);
        break;
    case ADDITIVE_DIRECT:
        additive_scores(ADDITIVE_DIRECT, S, A, B, w, lanes, rows, H, live);
        break;
    }
}

/* ---- backward: forward was score = sum_h w_h t_h, t = tanh(b - a), a the
 *      pre-activation with the other sign, whose gradient itself is wanted. So now
 *      -da_h = w_h sum_keys G (1 - t^2),  db_h = w_h sum_queries G (1 - t^2),
 *      dw_h = sum G t.
 * t is computed again: loading it would cost 4 bytes a triple, more time than
 * computing it. Nothing cancels in the slope 1 - t^2 of the exp forms, A B r^2 with r =
 * 2 / (A + B), however near t is to 1 or -1, where computed from t it would have hardly
 * a digit. */

/* r[u] = x / d[u], two of which share a division: less work than four, since all four are
 * wanted, fewer roundings, and denominators may be as large as 2^62. */
V_FN void
quotients(vf r[UNITS], vf x, const vf d[UNITS])
{
    UNROLL
    for (int u = 0; u < UNITS; u += 2) {
        vf both = v_div(x, v_mul(d[u], d[u + 1]));
        r[u] = v_mul(both, d[u + 1]);
        r[u + 1] = v_mul(both, d[u]);
    }
}

/* The terms of one pair of a vector of queries and a key, four hidden units: G t goes
 * into c, G (1 - t^2) into da and db. The exp regime leaves what is the same in all terms
 * of a sum to the end: the factors of 1 - t^2 = A B r^2, A in da and B in db, and of t =
 * (B - A) r / 2 the 1/2. The large one may not, as r^2 alone underflows. At p = 2^60,
 * where it is clamped, the slope ends at 2^-58, although t is 1 in float32 long before.
 */
V_FN void
additive_gradients(additive_regime regime, bool all, vm live, vf c[UNITS], vf da[UNITS],
                   vf db[UNITS], vf g, const vf a[UNITS], const vf b[UNITS])
{
    const bool small = regime == ADDITIVE_SMALL, large = regime == ADDITIVE_LARGE;
    const vf one = v_set1(1.0f);
    vf p[UNITS], d[UNITS], r[UNITS];
    if (regime != ADDITIVE_DIRECT) {
        UNROLL
        for (int u = 0; u < UNITS; u++) {
            p[u] = large ? v_min(v_set1(0x1p60f), v_mul(a[u], b[u])) : b[u];
            d[u] = small   ? v_fnma(a[u], b[u], one)
                   : large ? v_add(one, p[u])
                           : v_add(a[u], b[u]);
        }
        quotients(r, small ? one : v_set1(2.0f), d);
    }
    UNROLL
    for (int u = 0; u < UNITS; u++) {
        vf t, slope, c_factor = g, da_factor = g, db_factor = g;
        if (regime == ADDITIVE_DIRECT) {
            t = v_tanh_and_slope(v_sub(b[u], a[u]), &slope);
        } else if (small) {
            t = v_mul(v_sub(b[u], a[u]), r[u]);
            slope = v_fnma(t, t, one);
        } else if (large) {
            t = v_sub(one, r[u]);
            slope = v_mul(r[u], v_mul(p[u], r[u]));
        } else {
            t = v_sub(b[u], a[u]);
            c_factor = v_mul(g, r[u]);
            slope = v_mul(c_factor, r[u]);
            da_factor = b[u];
            db_factor = a[u];
        }
        c[u] = all ? v_fma(c_factor, t, c[u]) : v_fma_if(live, c_factor, t, c[u]);
        da[u] = all ? v_fma(slope, da_factor, da[u])
                    : v_fma_if(live, slope, da_factor, da[u]);
        db[u] = all ? v_fma(slope, db_factor, db[u])
                    : v_fma_if(live, slope, db_factor, db[u]);
    }
}

/* What c is multiplied by at the end. */
V_FN vf
additive_c_factor(additive_regime regime)
{
    return v_set1(regime == ADDITIVE_EXP ? 0.5f : 1.0f);
}

/* Keys whose sums across lanes are formed together, later: the division for the next
 * key need not wait for them. 8 % with AVX-512. */
enum { SUM_ROWS = 4 };

/* dB[i][u] += B[i][u] (exp) times the sum of db[i][.][u] over its lanes, i < rows. */
V_FN void
additive_add_sums(bool exp, float *dB, const float *B,
                  const vf db[SUM_ROWS][GROUP][UNITS], int rows, int64_t H,
                  const uint64_t *live)
{
    static const float ones[UNITS] = {1.0f, 1.0f, 1.0f, 1.0f};
    for (int i = 0; i < rows; i++) {
        if (live == NULL || live[i] != 0) {
            v_fma_sums16(dB + i * H, exp ? B + i * H : ones, db[i]);
        }
    }
}

/* dA += da, times A if exp, in one vector of lanes; C += c. In lanes whose form is not
 * this regime's A may be infinite, and da is 0. */
V_FN void
additive_add_lanes(additive_regime regime, float *dA, float *C, const vf a[UNITS],
                   const vf da[UNITS], const vf c[UNITS], int lanes)
{
    UNROLL
    for (int u = 0; u < UNITS; u++) {
        vf factor = regime == ADDITIVE_EXP ? v_min(a[u], v_set1(0x1p100f))
                                           : v_set1(1.0f);
        v_store(dA + u * lanes, v_fma(da[u], factor, v_load(dA + u * lanes)));
        v_store(C + u * lanes,
                v_fma(c[u], additive_c_factor(regime), v_load(C + u * lanes)));
    }
}

/* Four hidden units: nv vectors of lanes (1 or 2 groups of 16), all keys of the tile.
 * A key without a live lane is passed over: B may be infinite there. */
V_FN void
additive_units_backward(int nv, bool all, additive_regime regime, float *dA, float *C,
                        float *dB, const float *A, const float *B, const float *G,
                        int lanes, int rows, int64_t H, const uint64_t *live)
{
    const bool exp = regime == ADDITIVE_EXP;
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
        additive_add_sums(exp, dB + i0 * H, B + i0 * H, (const vf(*)[GROUP][UNITS])db,
                          n, H, all ? NULL : live + i0);
    }
    UNROLL_LANES
    for (int j = 0; j < nv; j++) {
        additive_add_lanes(regime, dA + j * VLEN, C + j * VLEN, a[j], da[j], c[j],
                           lanes);
    }
}

V_FN void
additive_gradient(int nv, additive_regime regime, float *dA, float *C, float *dB,
                  const float *A, const float *B, const float *G, int lanes, int rows,
                  int64_t H, const uint64_t *live)
{
    for (int64_t h = 0; h < H; h += UNITS) {
        int64_t at = h * lanes;
        if (live == NULL) {
            additive_units_backward(nv, true, regime, dA + at, C + at, dB + h, A + at,
                                    B + h, G, lanes, rows, H, live);
        } else {
            additive_units_backward(nv, false, regime, dA + at, C + at, dB + h, A + at,
                                    B + h, G, lanes, rows, H, live);
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

/* ---- the operands' forms --------------------------------------------------------- */

V_FN void
exp_form_step(int vectors, float *out, const float *x, int64_t n)
{
    vf e[TOGETHER];
    load_vectors(vectors, e, x, n);
    UNROLL
    for (int v = 0; v < vectors; v++) {
        e[v] = v_min(v_set1(88.0f), v_mul(v_set1(2.0f), e[v]));
    }
    v_exp_all(vectors, e);
    store_vectors(vectors, out, e, n);
}

static void
exp_form(float *out, const float *x, int64_t n)
{
    enum { STEP = TOGETHER * VLEN };
    int64_t i = 0;
    for (; i + STEP <= n; i += STEP) {
        exp_form_step(TOGETHER, out + i, x + i, STEP);
    }
    if (n - i > VLEN) {
        exp_form_step(TOGETHER, out + i, x + i, n - i);
    } else if (i < n) {
        exp_form_step(1, out + i, x + i, n - i);
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
negate_absmax(float *A, const float *bias, float *top, int lanes, int64_t H)
{
    if (lanes == 1) {
        *top = negate_query(A, bias, H);
        return;
    }
    for (int l = 0; l < lanes; l += VLEN) {
        vf most = v_zero();
        for (int64_t h = 0; h < H; h++) {
            float *a = A + h * lanes + l;
            vf b_h = bias != NULL ? v_set1(bias[h]) : v_zero();
            vf minus = v_sub(v_sub(v_zero(), v_load(a)), b_h);
            most = v_max(v_abs(minus), most);
            v_store(a, minus);
        }
        v_store(top + l, most);
    }
}
