/*
 * kernels_additive_query.h -- the additive score of one query (kernels_query.h): lanes
 * are keys in the scores, whose sums run over hidden units, and fours of hidden units in
 * the gradients, whose sums run over keys. Each sum, and what shares a division, is that
 * of a query among others, so that the bits are.
 */

/* As much of a row of B as is transposed at once. */
enum { SQUARE = VLEN < 4 ? 4 : VLEN }; /* a multiple of UNITS */

/* b[u] = hidden unit u of the keys, one in each lane; `rows` of VLEN keys and n of
 * SQUARE units are there. */
V_FN void
load_units(vf b[SQUARE], const float *B, int64_t H, int rows, int n)
{
    UNROLL
    for (int u = 0; u < SQUARE; u += VLEN) {
        UNROLL
        for (int i = 0; i < VLEN; i++) {
            b[u + i] = i < rows ? v_load_n(B + i * H + u, lanes_left(n - u)) : v_zero();
        }
        v_transpose(b + u);
    }
}

V_FN void
scores_query(additive_regime regime, float *S, const float *A, const float *B,
             const float *w, int keys, int64_t H, const uint64_t *live)
{
    for (int i = 0; i < keys; i += VLEN) {
        vf acc = v_zero(), sum = v_zero(), b[SQUARE], a[UNITS], w_h[UNITS], wa[UNITS];
        int rows = lanes_left(keys - i);
        for (int64_t h = 0; h < H; h += SQUARE) {
            int n = H - h < SQUARE ? (int)(H - h) : SQUARE;
            float products[SQUARE]; /* w a, n of them at once */
            for (int u = 0; u < n; u += VLEN) {
                int k = lanes_left(n - u);
                v_store(products + u,
                        v_mul(v_load_n(w + h + u, k), v_load_n(A + h + u, k)));
            }
            load_units(b, B + i * H + h, H, rows, n);
            for (int f = 0; f < n; f += UNITS) {
                UNROLL
                for (int u = 0; u < UNITS; u++) {
                    a[u] = additive_a(regime, v_set1(A[h + f + u]));
                    w_h[u] = v_set1(w[h + f + u]);
                    wa[u] = v_set1(products[f + u]);
                }
                acc = additive_terms(regime, acc, a, b + f, w_h, wa);
            }
            if ((h + n) % ATTN_UNITS == 0 || h + n == H) {
                sum = h < ATTN_UNITS ? acc : v_add(sum, acc);
                acc = v_zero();
            }
        }
        uint64_t bits = query_bits(live, i, i + rows);
        v_store_n(S + i, v_select(m_from_bits(bits), sum, v_load_n(S + i, rows)), rows);
    }
}

static void
additive_query(float *S, const float *A, const float *B, const float *w, int keys,
               int64_t H, additive_regime regime, const uint64_t *live)
{
    switch (regime) {
    case ADDITIVE_SMALL:
        scores_query(ADDITIVE_SMALL, S, A, B, w, keys, H, live);
        break;
    case ADDITIVE_EXP:
        scores_query(ADDITIVE_EXP, S, A, B, w, keys, H, live);
        break;
    case ADDITIVE_LARGE:
        scores_query(ADDITIVE_LARGE, S, A, B, w, keys, H, live);
        break;
    case ADDITIVE_DIRECT:
        scores_query(ADDITIVE_DIRECT, S, A, B, w, keys, H, live);
        break;
    }
}

/* ---- backward: a lane holds UNITS hidden units, which share a division ----------- */

enum { FOURS = UNITS * VLEN }; /* hidden units at once */

/* x[u] = number u of each four, of n <= FOURS numbers and `pad` behind them. */
V_FN void
load_fours(vf x[UNITS], const float *from, int n, float pad)
{
    float padded[FOURS];
    if (n < FOURS) {
        for (int i = 0; i < FOURS; i++) {
            padded[i] = pad;
        }
        memcpy(padded, from, (size_t)n * sizeof(float));
        from = padded;
    }
    UNROLL
    for (int u = 0; u < UNITS; u++) {
        x[u] = v_load(from + u * VLEN);
    }
    v_transpose_fours(x);
}

/* to += x * factor, n <= FOURS numbers. */
V_FN void
fma_fours(float *to, const vf x[UNITS], float factor, int n)
{
    float padded[FOURS], *sums = n < FOURS ? padded : to;
    vf sum[UNITS];
    load_fours(sum, to, n, 0.0f);
    UNROLL
    for (int u = 0; u < UNITS; u++) {
        sum[u] = v_fma(x[u], v_set1(factor), sum[u]);
    }
    v_transpose_fours(sum);
    UNROLL
    for (int u = 0; u < UNITS; u++) {
        v_store(sums + u * VLEN, sum[u]);
    }
    if (n < FOURS) {
        memcpy(to, padded, (size_t)n * sizeof(float));
    }
}

/* n <= FOURS hidden units, all keys of the tile. */
V_FN void
gradient_fours(additive_regime regime, float *dA, float *C, float *dB, const float *A,
               const float *B, const float *G, int keys, int64_t H, int n,
               const uint64_t *live)
{
    const vm every = m_from_bits(~(uint64_t)0);
    const float factor = additive_slope_factor(regime);
    const float pad = additive_is_exp(regime) ? 1.0f : 0.0f; /* no denominator is 0 */
    vf a[UNITS], da[UNITS], c[UNITS], g_sum = v_zero();
    load_fours(a, A, n, pad);
    UNROLL
    for (int u = 0; u < UNITS; u++) {
        a[u] = additive_a(regime, a[u]);
        da[u] = c[u] = v_zero();
    }
    for (int i = 0; i < keys; i++) {
        if (live != NULL && (live[i] & 1) == 0) {
            continue; /* B may be infinite */
        }
        vf b[UNITS], db[UNITS], g = v_set1(G[i]);
        load_fours(b, B + i * H, n, pad);
        UNROLL
        for (int u = 0; u < UNITS; u++) {
            db[u] = v_zero();
        }
        additive_gradients(regime, true, every, c, da, db, g, a, b);
        fma_fours(dB + i * H, db, factor, n);
        g_sum = v_add(g_sum, g);
    }
    UNROLL
    for (int u = 0; u < UNITS; u++) {
        c[u] = additive_c_sum(regime, c[u], a[u], g_sum);
    }
    fma_fours(dA, da, factor, n);
    fma_fours(C, c, 1.0f, n);
}

V_FN void
gradient_query(additive_regime regime, float *dA, float *C, float *dB, const float *A,
               const float *B, const float *G, int keys, int64_t H,
               const uint64_t *live)
{
    int64_t h = 0;
    for (; h + FOURS <= H; h += FOURS) {
        gradient_fours(regime, dA + h, C + h, dB + h, A + h, B + h, G, keys, H, FOURS,
                       live);
    }
    if (h < H) {
        gradient_fours(regime, dA + h, C + h, dB + h, A + h, B + h, G, keys, H,
                       (int)(H - h), live);
    }
}

static void
additive_query_backward(float *dA, float *C, float *dB, const float *A, const float *B,
                        const float *G, int keys, int64_t H, additive_regime regime,
                        const uint64_t *live)
{
    switch (regime) {
    case ADDITIVE_SMALL:
        gradient_query(ADDITIVE_SMALL, dA, C, dB, A, B, G, keys, H, live);
        break;
    case ADDITIVE_EXP:
        gradient_query(ADDITIVE_EXP, dA, C, dB, A, B, G, keys, H, live);
        break;
    case ADDITIVE_LARGE:
        gradient_query(ADDITIVE_LARGE, dA, C, dB, A, B, G, keys, H, live);
        break;
    case ADDITIVE_DIRECT:
        gradient_query(ADDITIVE_DIRECT, dA, C, dB, A, B, G, keys, H, live);
        break;
    }
}

/* A = -(A + bias); the largest |A|. */
static float
negate_query(float *A, const float *bias, int64_t H)
{
    for (int64_t h = 0; h < H; h += VLEN) {
        int n = lanes_left(H - h);
        vf b_h = bias != NULL ? v_load_n(bias + h, n) : v_zero();
        v_store_n(A + h, v_sub(v_sub(v_zero(), v_load_n(A + h, n)), b_h), n);
    }
    return absmax_row(A, H);
}
