/*
 * kernels_query.h -- the kernels of a block with one lane: one query, as in a decoder's
 * step.
 *
 * Sixteen lanes that are queries would do one query's work sixteen times. So here lanes
 * are what lies side by side in memory: the keys of a tile, which is then simply a row
 * of them, or the features of a key. The order of every sum is that of the kernels with
 * many lanes, so a query gives the same bits alone and among others. Each kernel of a
 * tile starts with the question whether it has one lane, and if so goes on here.
 */

/* Which of the 16 keys from i on are there and live: one bit of each word. */
V_FN uint64_t
query_bits(const uint64_t *live, int i, int keys)
{
    int n = keys - i < 16 ? keys - i : 16;
    uint64_t bits = 0;
    for (int k = 0; k < n; k++) {
        bits |= (live == NULL ? 1 : live[i + k] & 1) << k;
    }
    return bits;
}

/* The next 16 numbers of a row of keys, `rest` in place of those that do not count. */
V_FN void
load_keys(vf g[GROUP], const float *row, int i, int keys, const uint64_t *live, vf rest)
{
    load_group(g, row + i, keys - i);
    if (live != NULL || keys - i < 16) {
        fill_dead(g, query_bits(live, i, keys), rest);
    }
}

/* ---- softmax --------------------------------------------------------------------- */

/* The four chains of ATTN_GROUP keys (kernels_softmax.h) side by side. */
enum { CHAIN = VLEN < 4 ? VLEN : 4 };

V_FN float
sum_chains(const vf way[4 / CHAIN])
{
    float w[4];
    for (int v = 0; v < 4 / CHAIN; v++) {
        v_store_n(w + v * CHAIN, way[v], CHAIN);
    }
    return (w[0] + w[2]) + (w[1] + w[3]);
}

/* sum_i P[i], or sum_i P[i] Y[i], of up to ATTN_KEYS keys. */
V_FN float
sum_of_keys(bool product, const float *P, const float *Y, int keys)
{
    float total = 0.0f;
    for (int i = 0; i < keys; i += ATTN_GROUP) {
        vf way[4 / CHAIN];
        for (int v = 0; v < 4 / CHAIN; v++) {
            way[v] = v_zero();
            for (int k = i + v * CHAIN; k < i + ATTN_GROUP && k < keys; k += 4) {
                int n = keys - k < CHAIN ? keys - k : CHAIN;
                vf p = v_load_n(P + k, n);
                way[v] = product ? v_fma(p, v_load_n(Y + k, n), way[v])
                                 : v_add(way[v], p);
            }
        }
        total += sum_chains(way);
    }
    return total;
}

static void
softmax_query(float *S, int keys, float *m, float *l, float *alpha,
              const uint64_t *live)
{
    vf top[GROUP], g[GROUP];
    set_group(top, v_set1(-INFINITY));
    for (int i = 0; i < keys; i += 16) {
        load_keys(g, S, i, keys, live, v_set1(-INFINITY));
        UNROLL
        for (int v = 0; v < GROUP; v++) {
            top[v] = v_max(g[v], top[v]);
        }
    }
    vf before = v_set1(*m), after = v_max(v_set1(v_max16(top)), before);
    vf origin = finite_or_zero(after);
    for (int i = 0; i < keys; i += 16) {
        load_keys(g, S, i, keys, live, v_set1(-INFINITY)); /* 2^-inf is 0 */
        UNROLL
        for (int v = 0; v < GROUP; v++) {
            g[v] = v_sub(g[v], origin);
        }
        v_exp2_all(GROUP, g);
        store_group(S + i, g, keys - i);
    }
    vf a = v_exp2(v_sub(before, origin));
    vf sum = v_set1(sum_of_keys(false, S, NULL, keys));
    v_store_n(m, after, 1);
    v_store_n(l, v_fma(v_set1(*l), a, sum), 1);
    v_store_n(alpha, a, 1);
}

static void
prob_query(float *S, int keys, float m, float inv, const uint64_t *live)
{
    for (int i = 0; i < keys; i += 16) {
        vf g[GROUP];
        load_keys(g, S, i, keys, NULL, v_zero());
        UNROLL
        for (int v = 0; v < GROUP; v++) {
            g[v] = v_sub(g[v], v_set1(m));
        }
        v_exp2_all(GROUP, g);
        UNROLL
        for (int v = 0; v < GROUP; v++) {
            g[v] = v_mul(g[v], v_set1(inv));
        }
        if (live != NULL) {
            fill_dead(g, query_bits(live, i, keys), v_zero());
        }
        store_group(S + i, g, keys - i);
    }
}

/* Dead pairs are left out one by one: they are in few tiles. */
static void
dot_query(float *D, const float *X, const float *Y, int keys, const uint64_t *live)
{
    float x[ATTN_KEYS], y[ATTN_KEYS];
    if (live != NULL) {
        for (int i = 0; i < keys; i++) {
            x[i] = (live[i] & 1) != 0 ? X[i] : 0.0f;
            y[i] = (live[i] & 1) != 0 ? Y[i] : 0.0f;
        }
        X = x;
        Y = y;
    }
    *D += sum_of_keys(true, X, Y, keys);
}

static void
dscore_query(float *dP, const float *P, float D, float E, float gain, int keys,
             const uint64_t *live)
{
    for (int i = 0; i < keys; i += 16) {
        vf p[GROUP], g[GROUP];
        load_keys(p, P, i, keys, live, v_zero());
        load_keys(g, dP, i, keys, live, v_zero());
        UNROLL
        for (int v = 0; v < GROUP; v++) {
            vf inner = v_add(v_sub(g[v], v_set1(D)), v_set1(E));
            g[v] = v_mul(v_mul(p[v], inner), v_set1(gain));
        }
        if (live != NULL) { /* D may be NaN */
            fill_dead(g, query_bits(live, i, keys), v_zero());
        }
        store_group(dP + i, g, keys - i);
    }
}

static void
keep_query(float *P, int keys, float scale, const uint64_t *keep)
{
    for (int i = 0; i < keys; i += 16) {
        vf factor[GROUP], p[GROUP];
        set_group(factor, v_set1(scale));
        fill_dead(factor, query_bits(keep, i, keys), v_zero());
        load_group(p, P + i, keys - i);
        UNROLL
        for (int v = 0; v < GROUP; v++) {
            p[v] = v_mul(p[v], factor[v]);
        }
        store_group(P + i, p, keys - i);
    }
}

/* As add_tile. */
static void
add_query(float *S, int keys, const float *T, int ldt, float gain)
{
    const vf lowest = v_set1(LOWEST_BIAS);
    for (int i = 0; i < keys; i += 16) {
        vf s[GROUP], t[GROUP];
        load_group(s, S + i, keys - i);
        set_group(t, v_set1(*T));
        if (ldt != 0) {
            load_group(t, T + i, keys - i);
        }
        UNROLL
        for (int v = 0; v < GROUP; v++) {
            s[v] = v_fma(v_set1(gain), v_max(lowest, t[v]), s[v]);
        }
        store_group(S + i, s, keys - i);
    }
}

/* ---- rows: to = gain * from (+ 0) ------------------------------------------------ */

static void
scale_row(float *to, const float *from, int64_t n, float gain, bool plus_zero)
{
    for (int64_t i = 0; i < n; i += VLEN) {
        int k = lanes_left(n - i);
        vf x = v_mul(v_load_n(from + i, k), v_set1(gain));
        v_store_n(to + i, plus_zero ? v_add(x, v_zero()) : x, k);
    }
}

/* ---- a query against the rows of a matrix ---------------------------------------- */

/* Two blocks of VLEN rows are summed side by side, far from each other: a row's sum is one
 * chain, which waits for each of its terms, and Zen 3 reads two streams of memory at 25 GB
 * a second where it reads one at 21. Rows are asked for ROWS_AHEAD rows before, in the
 * order in which they lie and a few lines at a time; a line of each row in turn, or all
 * lines at once, is slower. (8, 8, 1, 1024, 64), kernels alone: 2.26 -> 1.92 ms, 2.04 ->
 * 1.84 where L3 has some of it. */
enum { BLOCKS = 2, ROWS_AHEAD = 8 };

/* c, one row of X in each lane: c += x y, or c += (y - x)^2, over n <= VLEN terms; `rows`
 * of VLEN are there. Squares of X are transposed in registers, so that each row's sum is
 * one chain. */
V_FN vf
row_terms(vf c, bool distance, const float *X, int64_t ldx, const float *y, int rows,
          int n)
{
    vf x[VLEN];
    UNROLL
    for (int i = 0; i < VLEN; i++) {
        const float *x_i = X + i * ldx;
        x[i] = i >= rows ? v_zero() : n == VLEN ? v_load(x_i) : v_load_n(x_i, n);
    }
    v_transpose(x);
    UNROLL
    for (int f = 0; f < VLEN; f++) {
        if (f < n) {
            vf q = v_set1(y[f]), d = distance ? v_sub(q, x[f]) : x[f];
            c = v_fma(d, distance ? d : q, c);
        }
    }
    return c;
}

/* out[i] (+)= factor * the sum of row i: of up to VLEN rows, and of as many in each
 * further block, `apart` rows from the one before. */
V_FN void
row_sums(int blocks, bool distance, bool add, float *out, const float *X, int64_t ldx,
         int64_t apart, const float *y, int rows, int64_t K, float factor)
{
    vf c[BLOCKS];
    int64_t t = 0, ahead = ROWS_AHEAD * ldx,
            column = 0; /* of the next line to ask for */
    UNROLL
    for (int b = 0; b < blocks; b++) {
        c[b] = v_zero();
    }
    for (; t + VLEN <= K; t += VLEN) {
        for (int line = 0; line < VLEN * VLEN / 16; line++) {
            for (int b = 0; b < blocks; b++) {
                fetch(X + b * apart * ldx, ahead + column);
            }
            column += 16;
            if (column >= K) {
                column = 0;
                ahead += ldx;
            }
        }
        UNROLL
        for (int b = 0; b < blocks; b++) {
            c[b] = row_terms(c[b], distance, X + b * apart * ldx + t, ldx, y + t, rows,
                             VLEN);
        }
    }
    UNROLL
    for (int b = 0; b < blocks; b++) {
        float *to = out + b * apart;
        if (t < K) {
            c[b] = row_terms(c[b], distance, X + b * apart * ldx + t, ldx, y + t, rows,
                             (int)(K - t));
        }
        c[b] = distance ? v_mul(c[b], v_set1(factor)) : c[b];
        v_store_n(to, add ? v_add(v_load_n(to, rows), c[b]) : c[b], rows);
    }
}

V_FN void
all_row_sums(bool distance, bool add, float *out, const float *X, int64_t ldx,
             const float *y, int64_t rows, int64_t K, float factor)
{
    const int64_t apart = rows / (BLOCKS * VLEN) * VLEN;
    for (int64_t i = 0; i < apart; i += VLEN) {
        row_sums(BLOCKS, distance, add, out + i, X + i * ldx, ldx, apart, y, VLEN, K,
                 factor);
    }
    for (int64_t i = BLOCKS * apart; i < rows; i += VLEN) {
        row_sums(1, distance, add, out + i, X + i * ldx, ldx, 0, y,
                 lanes_left(rows - i), K, factor);
    }
}

/* matmul with one column, out (rows) (+)= X (rows, K) y (K). */
static void
matmul_query(float *out, const float *X, int64_t ldx, const float *y, int64_t rows,
             int64_t K, bool add)
{
    int64_t t = 0;
    do {
        int64_t terms = K - t < ATTN_CHUNK ? K - t : ATTN_CHUNK;
        all_row_sums(false, add || t > 0, out, X + t, ldx, y + t, rows, terms, 1.0f);
        t += terms;
    } while (t < K);
}

/* ---- sums over keys: lanes are features ------------------------------------------ */

enum { QUERY_VECTORS = VLEN == 16 ? 4 : 8 }; /* of features at once */

/* C[n] = C * alpha + sum_t P[t] X[t*sx + .], n <= QUERY_VECTORS * VLEN features. */
V_FN void
pool_features(bool whole, float *C, const float *X, int64_t sx, const float *P, int K,
              float alpha, const uint64_t *live, int64_t n)
{
    vf c[QUERY_VECTORS];
    int left[QUERY_VECTORS];
    UNROLL
    for (int v = 0; v < QUERY_VECTORS; v++) {
        c[v] = v_zero();
        left[v] = whole ? VLEN : lanes_left(n - v * VLEN);
    }
    for (int t = 0; t < K; t++) {
        if (live != NULL && (live[t] & 1) == 0) {
            continue;
        }
        vf p = v_set1(P[t]);
        const float *x = X + t * sx;
        UNROLL
        for (int v = 0; v < QUERY_VECTORS; v++) {
            if (whole) {
                c[v] = v_fma(p, v_load(x + v * VLEN), c[v]);
            } else if (left[v] > 0) {
                c[v] = v_fma(p, v_load_n(x + v * VLEN, left[v]), c[v]);
            }
        }
    }
    UNROLL
    for (int v = 0; v < QUERY_VECTORS; v++) {
        if (left[v] > 0) {
            float *to = C + v * VLEN;
            v_store_n(to, v_fma(v_load_n(to, left[v]), v_set1(alpha), c[v]), left[v]);
        }
    }
}

/* ATTN_POOL keys at a time, as in all pooling. Not inlined: in the middle of pool, what
 * gcc 12 made of the loop over keys depended on pool's other loops, by 20 % with AVX2. */
static __attribute__((noinline)) void
pool_query(float *C, const float *X, int64_t sx, const float *P, int64_t features,
           int K, const float *alpha, const uint64_t *live)
{
    enum { WIDE = QUERY_VECTORS * VLEN };
    for (int t = 0; t < K; t += ATTN_POOL) {
        int keys = K - t < ATTN_POOL ? K - t : ATTN_POOL;
        float a = t == 0 && alpha != NULL ? *alpha : 1.0f;
        const uint64_t *live_t = live == NULL ? NULL : live + t;
        for (int64_t d = 0; d < features; d += WIDE) {
            const float *x = X + t * sx + d;
            if (features - d >= WIDE) {
                pool_features(true, C + d, x, sx, P + t, keys, a, live_t, WIDE);
            } else {
                pool_features(false, C + d, x, sx, P + t, keys, a, live_t,
                              features - d);
            }
        }
    }
}

/* dQ[d] += sum_t G[t] (X[t*ldx + d] - Q[d]) over live t. */
static void
difference_query(float *dQ, const float *G, const float *X, int64_t ldx, const float *Q,
                 int keys, int64_t D, const uint64_t *live)
{
    for (int64_t d = 0; d < D; d += VLEN) {
        int n = lanes_left(D - d);
        vf q = v_load_n(Q + d, n), c = v_zero();
        for (int t = 0; t < keys; t++) {
            if (live == NULL || (live[t] & 1) != 0) {
                c = v_fma(v_set1(G[t]), v_sub(v_load_n(X + t * ldx + d, n), q), c);
            }
        }
        v_store_n(dQ + d, v_add(v_load_n(dQ + d, n), c), n);
    }
}

/* ---- a query's terms of what its keys sum up ------------------------------------- */

/* Rows are written once, one after the other, and stores that wait for their lines keep the
 * rows that are read next from coming. (8, 8, 1, 1024, 64), one Xeon thread: 5.5 -> 3.5 ms
 * where the results before are still held, else 2.9 -> 2.7; with 8, 16, 64, 128 rows held
 * 3.9, 4.0, 3.2, 3.5, else 2.7, 2.8, 2.75, 2.85. */
enum { WRITES_AHEAD = 32 };

static void
outer_query(float *C, int64_t ldc, const float *X, const float *y, int keys, int64_t D,
            const uint64_t *live)
{
    for (int i = 0; i < keys; i++) {
        const bool dead = live != NULL && (live[i] & 1) == 0;
        for (int64_t d = 0; d < D; d += 16) {
            fetch_to_write(C + i * ldc, WRITES_AHEAD * ldc + d);
        }
        for (int64_t d = 0; d < D; d += VLEN) {
            int n = lanes_left(D - d);
            vf y_d = n == VLEN ? v_load(y + d) : v_load_n(y + d, n);
            vf sum = v_add(v_zero(), v_fma(v_set1(X[i]), y_d, v_zero()));
            v_store_n(C + i * ldc + d, dead ? v_zero() : sum, n);
        }
    }
}
