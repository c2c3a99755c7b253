/*
 * kernels_softmax.h -- softmax of tiles, forward and backward. Lanes are queries.
 */

V_FN vm
live_lanes(const uint64_t *live, int i, int l)
{
    return m_from_bits(live == NULL ? ~(uint64_t)0 : live[i] >> l);
}

/* A lane's sum over the keys of a tile: fours of chains inside groups of 16 keys, the
 * groups one after another. The rounding error of such a sum is a third of that of one
 * long chain, which matters: sum_j dS_j = 0 of the backward pass holds as well as
 * these sums do. */
enum { WAYS = 4 };

V_FN vf
sum_ways(const vf way[WAYS])
{
    return v_add(v_add(way[0], way[2]), v_add(way[1], way[3]));
}

V_FN vf
sum_group(int count, const float *P, int lanes)
{
    vf way[WAYS] = {v_zero(), v_zero(), v_zero(), v_zero()};
    UNROLL
    for (int i = 0; i < ATTN_GROUP; i++) {
        if (i < count) {
            way[i % WAYS] = v_add(way[i % WAYS], v_load(P + i * lanes));
        }
    }
    return sum_ways(way);
}

/* 2^(S - origin) of one vector of lanes and the `count` keys of a group, in place; the
 * sum. That comes afterwards: its chains would take the registers that exponentials are
 * raised in. Zen 3, with whole fours in top_of_column: 9.3 -> 8.4 cycles a vector. */
V_FN vf
exp_group(int count, bool all, float *S, int lanes, vf origin, const uint64_t *live,
          int lane)
{
    for (int i = 0; i < count; i += WAYS) {
        vf p[WAYS];
        UNROLL
        for (int w = 0; w < WAYS; w++) {
            vf s = i + w < count ? v_load(S + (i + w) * lanes) : v_zero();
            p[w] = v_sub(s, origin);
        }
        v_exp2_all(WAYS, p);
        UNROLL
        for (int w = 0; w < WAYS; w++) {
            if (i + w < count) {
                if (!all) {
                    p[w] = v_select(live_lanes(live, i + w, lane), p[w], v_zero());
                }
                v_store(S + (i + w) * lanes, p[w]);
            }
        }
    }
    return sum_group(count, S, lanes);
}

V_FN vf
exp_column(bool all, float *S, int lanes, int rows, vf origin, const uint64_t *live,
           int lane)
{
    vf total = v_zero();
    int i = 0;
    for (; i + ATTN_GROUP <= rows; i += ATTN_GROUP) {
        total = v_add(total, exp_group(ATTN_GROUP, all, S + i * lanes, lanes, origin,
                                       all ? NULL : live + i, lane));
    }
    if (i < rows) {
        total = v_add(total, exp_group(rows - i, all, S + i * lanes, lanes, origin,
                                       all ? NULL : live + i, lane));
    }
    return total;
}

V_FN vf
top_of_key(bool all, const float *S, vf before, const uint64_t *live, int i, int lane)
{
    vf top = v_max(v_load(S), before);
    return all ? top : v_select(live_lanes(live, i, lane), top, before);
}

/* The largest live score of a column, at least `before`. One chain of maxima would take
 * as long as all the rest: 4 cycles a key. */
V_FN vf
top_of_column(bool all, const float *S, int lanes, int rows, vf before,
              const uint64_t *live, int lane)
{
    vf way[WAYS] = {before, before, before, before};
    int i = 0;
    for (; i + WAYS <= rows; i += WAYS) {
        UNROLL
        for (int w = 0; w < WAYS; w++) {
            way[w] = top_of_key(all, S + (i + w) * lanes, way[w], live, i + w, lane);
        }
    }
    for (; i < rows; i++) {
        way[0] = top_of_key(all, S + i * lanes, way[0], live, i, lane);
    }
    return v_max(v_max(way[0], way[2]), v_max(way[1], way[3]));
}

/* m and alpha of all lanes, then their exponentials, which so need not wait for the
 * maximum of their lanes: up to 3 % of a forward with AVX-512 (Cascade Lake, 128 features),
 * nothing with AVX2. */
V_FN void
softmax_lanes(bool all, float *S, int lanes, int rows, float *m, float *l, float *alpha,
              const uint64_t *live)
{
    for (int j = 0; j < lanes; j += VLEN) {
        vf before = v_load(m + j);
        vf top = top_of_column(all, S + j, lanes, rows, before, live, j);
        v_store(alpha + j, v_exp2(v_sub(before, finite_or_zero(top))));
        v_store(m + j, top);
    }
    for (int j = 0; j < lanes; j += VLEN) {
        vf origin = finite_or_zero(v_load(m + j));
        vf sum = exp_column(all, S + j, lanes, rows, origin, live, j);
        v_store(l + j, v_fma(v_load(l + j), v_load(alpha + j), sum));
    }
}

static void
softmax_tile(float *S, int lanes, int rows, float *m, float *l, float *alpha,
             const uint64_t *live)
{
    if (lanes == 1) {
        softmax_query(S, rows, m, l, alpha, live);
    } else if (live == NULL) {
        softmax_lanes(true, S, lanes, rows, m, l, alpha, live);
    } else {
        softmax_lanes(false, S, lanes, rows, m, l, alpha, live);
    }
}

/* One vector of lanes of so many keys, WAYS at most. */
V_FN void
prob_keys(int keys, float *S, int lanes, vf m, vf inv, const uint64_t *live, int lane)
{
    vf p[WAYS];
    UNROLL
    for (int i = 0; i < keys; i++) {
        p[i] = v_sub(v_load(S + i * lanes), m);
    }
    v_exp2_all(keys, p);
    UNROLL
    for (int i = 0; i < keys; i++) {
        p[i] = v_mul(p[i], inv);
        if (live != NULL) {
            p[i] = v_select(live_lanes(live, i, lane), p[i], v_zero());
        }
        v_store(S + i * lanes, p[i]);
    }
}

static void
prob_tile(float *S, int lanes, int rows, const float *m, const float *inv,
          const uint64_t *live)
{
    if (lanes == 1) {
        prob_query(S, rows, *m, *inv, live);
        return;
    }
    for (int j = 0; j < lanes; j += VLEN) {
        int i = 0;
        for (; i + WAYS <= rows; i += WAYS) {
            prob_keys(WAYS, S + i * lanes + j, lanes, v_load(m + j), v_load(inv + j),
                      live == NULL ? NULL : live + i, j);
        }
        for (; i < rows; i++) {
            prob_keys(1, S + i * lanes + j, lanes, v_load(m + j), v_load(inv + j),
                      live == NULL ? NULL : live + i, j);
        }
    }
}

V_FN vf
dot_group(int count, const float *X, const float *Y, int lanes, const uint64_t *live,
          int lane)
{
    vf way[WAYS] = {v_zero(), v_zero(), v_zero(), v_zero()};
    UNROLL
    for (int i = 0; i < ATTN_GROUP; i++) {
        if (i < count) {
            vm m = live_lanes(live, i, lane);
            vf x = v_load(X + i * lanes), y = v_load(Y + i * lanes);
            way[i % WAYS] = v_fma_if(m, x, y, way[i % WAYS]);
        }
    }
    return sum_ways(way);
}

static void
dot_tile(float *D, const float *X, const float *Y, int lanes, int rows,
         const uint64_t *live)
{
    if (lanes == 1) {
        dot_query(D, X, Y, rows, live);
        return;
    }
    for (int j = 0; j < lanes; j += VLEN) {
        vf total = v_zero();
        int i = 0;
        for (; i + ATTN_GROUP <= rows; i += ATTN_GROUP) {
            total = v_add(total,
                          dot_group(ATTN_GROUP, X + i * lanes + j, Y + i * lanes + j,
                                    lanes, live == NULL ? NULL : live + i, j));
        }
        if (i < rows) {
            total = v_add(total,
                          dot_group(rows - i, X + i * lanes + j, Y + i * lanes + j,
                                    lanes, live == NULL ? NULL : live + i, j));
        }
        v_store(D + j, v_add(v_load(D + j), total));
    }
}

static void
add_tile(float *S, int lanes, int rows, const float *T, int ldt, float gain)
{
    if (lanes == 1) {
        add_query(S, rows, T, ldt, gain);
        return;
    }
    const vf lowest = v_set1(LOWEST_BIAS);
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < lanes; j += VLEN) {
            float *s = S + i * lanes + j;
            vf t = v_max(lowest, v_load(T + i * ldt + j)); /* NaN stays NaN */
            v_store(s, v_fma(v_set1(gain), t, v_load(s)));
        }
    }
}

static void
scale_tile(float *S, int lanes, int rows, const float *factor)
{
    if (lanes == 1) {
        scale_row(S, S, rows, *factor, false);
        return;
    }
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < lanes; j += VLEN) {
            float *s = S + i * lanes + j;
            v_store(s, v_mul(v_load(s), v_load(factor + j)));
        }
    }
}

static void
dscore_tile(float *dP, const float *P, const float *D, const float *E, float gain,
            int lanes, int rows, const uint64_t *live)
{
    if (lanes == 1) {
        dscore_query(dP, P, *D, *E, gain, rows, live);
        return;
    }
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < lanes; j += VLEN) {
            float *to = dP + i * lanes + j;
            vf inner = v_add(v_sub(v_load(to), v_load(D + j)), v_load(E + j));
            vf s = v_mul(v_mul(v_load(P + i * lanes + j), inner), v_set1(gain));
            v_store(to,
                    live == NULL ? s : v_select(live_lanes(live, i, j), s, v_zero()));
        }
    }
}

static void
keep_tile(float *P, int lanes, int rows, float scale, const uint64_t *keep)
{
    if (lanes == 1) {
        keep_query(P, rows, scale, keep);
        return;
    }
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < lanes; j += VLEN) {
            float *p = P + i * lanes + j;
            vf factor = v_select(live_lanes(keep, i, j), v_set1(scale), v_zero());
            v_store(p, v_mul(v_load(p), factor));
        }
    }
}
