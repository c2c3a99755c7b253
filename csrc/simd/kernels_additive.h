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

/* mr keys by one vector of lanes, `units` of the H hidden ones: S = their sum, or += if
 * add; S, A, B, w at the first key, lane and unit. Two vectors at a time are no faster
 * with AVX-512 and leave AVX2 without registers. */
V_FN void
additive_block(int mr, additive_regime regime, bool add, float *S, const float *A,
               const float *B, const float *w, int lanes, int64_t units, int64_t H,
               const uint64_t *live, int lane)
{
    vf acc[SCORE_ROWS];
    UNROLL
    for (int i = 0; i < mr; i++) {
        acc[i] = v_zero();
    }
    for (int64_t h = 0; h < units; h += UNITS) {
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
        vf sum = add ? v_add(v_load(S), acc[i]) : acc[i];
        v_store(S, live == NULL ? sum
                                : v_select(live_lanes(live, i, lane), sum, v_load(S)));
        S += lanes;
    }
}

/* All hidden units of mr keys and one vector of lanes. */
V_FN void
additive_rows(int mr, additive_regime regime, float *S, const float *A, const float *B,
              const float *w, int lanes, int64_t H, const uint64_t *live, int lane)
{
    int64_t h = 0;
    do {
        int64_t units = H - h < ATTN_UNITS ? H - h : ATTN_UNITS;
        additive_block(mr, regime, h > 0, S, A + h * lanes, B + h, w + h, lanes, units,
                       H, live, lane);
        h += units;
    } while (h < H);
}

V_FN void
additive_scores(additive_regime regime, float *S, const float *A, const float *B,
                const float *w, int lanes, int rows, int64_t H, const uint64_t *live)
{
    for (int l = 0; l < lanes; l += VLEN) {
        int i = 0;
        for (; i + SCORE_ROWS <= rows; i += SCORE_ROWS) {
            additive_rows(SCORE_ROWS, regime, S + i * lanes + l, A + l, B + i * H, w,
                          lanes, H, live == NULL ? NULL : live + i, l);
        }
        for (; i < rows; i++) {
            additive_rows(1, regime, S + i * lanes + l, A + l, B + i * H, w, lanes, H,
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
