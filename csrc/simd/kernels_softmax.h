/*
 * kernels_softmax.h -- softmax of tiles, forward and backward. Lanes are queries.
 */

V_FN vm
live_lanes(const uint64_t *live, int i, int l)
{
    return m_from_bits(live == NULL ? ~(uint64_t)0 : live[i] >> l);
}

/* An infinite maximum counts as 0: scores of -inf then get the weight 2^-inf = 0, and
 * a row with a score of +inf is made NaN by whoever finishes the row. */
V_FN vf
finite_or_zero(vf m)
{
    return v_select(v_lt(v_abs(m), v_set1(INFINITY)), m, v_zero());
}

/* A lane's sum over the keys of a tile: fours of chains inside groups of 16 keys, the
 * groups one after another. The rounding error of such a sum is a third of that of one
 * long chain, which matters: sum_j dS_j = 0 of the backward pass holds as well as
 * these sums do. */
enum { WAYS = 4, SUM_GROUP = 16 };

V_FN vf
sum_ways(const vf way[WAYS])
{
    return v_add(v_add(way[0], way[2]), v_add(way[1], way[3]));
}

/* 2^(S - origin) of one vector of lanes and the `count` keys of a group, in place; the
 * sum. */
V_FN vf
exp_group(int count, bool all, float *S, int lanes, vf origin, const uint64_t *live,
          int lane)
{
    vf way[WAYS] = {v_zero(), v_zero(), v_zero(), v_zero()};
    UNROLL
    for (int i = 0; i < SUM_GROUP; i++) {
        if (i < count) {
            float *s = S + i * lanes;
            vf p = v_exp2(v_sub(v_load(s), origin));
            if (!all) {
                p = v_select(live_lanes(live, i, lane), p, v_zero());
            }
            v_store(s, p);
            way[i % WAYS] = v_add(way[i % WAYS], p);
        }
    }
    return sum_ways(way);
}

V_FN vf
exp_column(bool all, float *S, int lanes, int rows, vf origin, const uint64_t *live,
           int lane)
{
    vf total = v_zero();
    int i = 0;
    for (; i + SUM_GROUP <= rows; i += SUM_GROUP) {
        total = v_add(total, exp_group(SUM_GROUP, all, S + i * lanes, lanes, origin,
                                       all ? NULL : live + i, lane));
    }
    if (i < rows) {
        total = v_add(total, exp_group(rows - i, all, S + i * lanes, lanes, origin,
                                       all ? NULL : live + i, lane));
    }
    return total;
}

static void
softmax_tile(float *S, int lanes, int rows, float *m, float *l, float *alpha,
             const uint64_t *live)
{
    for (int j = 0; j < lanes; j += VLEN) {
        vf before = v_load(m + j), top = before;
        for (int i = 0; i < rows; i++) {
            vf s = v_load(S + i * lanes + j);
            top = live == NULL ? v_max(s, top)
                               : v_select(live_lanes(live, i, j), v_max(s, top), top);
        }
        vf origin = finite_or_zero(top);
        vf sum = live == NULL ? exp_column(true, S + j, lanes, rows, origin, live, j)
                              : exp_column(false, S + j, lanes, rows, origin, live, j);
        vf a = v_exp2(v_sub(before, origin));
        v_store(m + j, top);
        v_store(l + j, v_fma(v_load(l + j), a, sum));
        v_store(alpha + j, a);
    }
}

static void
prob_tile(float *S, int lanes, int rows, const float *m, const float *inv,
          const uint64_t *live)
{
    for (int j = 0; j < lanes; j += VLEN) {
        vf top = v_load(m + j), f = v_load(inv + j);
        for (int i = 0; i < rows; i++) {
            float *s = S + i * lanes + j;
            vf p = v_mul(v_exp2(v_sub(v_load(s), top)), f);
            v_store(s,
                    live == NULL ? p : v_select(live_lanes(live, i, j), p, v_zero()));
        }
    }
}

V_FN vf
dot_group(int count, const float *X, const float *Y, int lanes, const uint64_t *live,
          int lane)
{
    vf way[WAYS] = {v_zero(), v_zero(), v_zero(), v_zero()};
    UNROLL
    for (int i = 0; i < SUM_GROUP; i++) {
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
    for (int j = 0; j < lanes; j += VLEN) {
        vf total = v_zero();
        int i = 0;
        for (; i + SUM_GROUP <= rows; i += SUM_GROUP) {
            total = v_add(total,
                          dot_group(SUM_GROUP, X + i * lanes + j, Y + i * lanes + j,
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
    /* The lowest floats, with which many models mask, would be -inf in units. */
    const vf lowest = v_set1(-0x1.6p127f);
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
    for (int j = 0; j < lanes; j += VLEN) {
        vf f = v_load(factor + j);
        for (int i = 0; i < rows; i++) {
            v_store(S + i * lanes + j, v_mul(v_load(S + i * lanes + j), f));
        }
    }
}

static void
dscore_tile(float *dP, const float *P, const float *D, const float *E, float gain,
            int lanes, int rows, const uint64_t *live)
{
    for (int j = 0; j < lanes; j += VLEN) {
        vf d = v_load(D + j), e = v_load(E + j), g = v_set1(gain);
        for (int i = 0; i < rows; i++) {
            float *to = dP + i * lanes + j;
            vf inner = v_add(v_sub(v_load(to), d), e);
            vf s = v_mul(v_mul(v_load(P + i * lanes + j), inner), g);
            v_store(to,
                    live == NULL ? s : v_select(live_lanes(live, i, j), s, v_zero()));
        }
    }
}

static void
keep_tile(float *P, int lanes, int rows, float scale, const uint64_t *keep)
{
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < lanes; j += VLEN) {
            float *p = P + i * lanes + j;
            vf factor = v_select(live_lanes(keep, i, j), v_set1(scale), v_zero());
            v_store(p, v_mul(v_load(p), factor));
        }
    }
}
