/*
 * kernels_matmul.h -- the register tile, and everything that is a product or nearly
 * one.
 *
 * A tile of `mr` rows by `nv` vectors stays in registers while t runs; each step
 * broadcasts mr numbers of X from where they lie and multiplies them with nv vectors of
 * Y. mr, nv and the kind of step are constants at every inlined call, so the loops
 * below disappear. A tile fills the register file and hides the latency of the
 * multiply-adds: with AVX-512 (6x4, 8x3, 8x2, 8x1) ten loads feed 24 of them, with AVX2 (6x2)
 * eight feed twelve.
 */

typedef enum {
    STEP_PRODUCT,  /* c += x * y */
    STEP_LIVE,     /* c += x * y where the lane is live at t */
    STEP_DISTANCE, /* c += (y - x)^2 */
} tile_step;

typedef enum {
    PUT_INTO,    /* C = c, 0 + c or C + c, as `into` says */
    PUT_RESCALE, /* C = C * scale[j] + c, or C + c if scale is NULL */
    PUT_FACTOR,  /* C = c * scale[0] */
} tile_put;

typedef struct {
    float *C;
    const float *X, *Y;
    int64_t ldc, ldx, sx, ldy, K;
    attn_into into;       /* of PUT_INTO */
    const float *scale;   /* of PUT_RESCALE and PUT_FACTOR */
    const uint64_t *live; /* of pool: the word of t = 0; lane 0 is bit `lane` */
    int lane;
    int last; /* floats in the last vector: VLEN, or less at the right edge */
} tile_args;

/* Two steps a turn: 95.4 % of the peak in score tiles of 64 features, 94.0 with one. */
#if defined(__clang__)
#define UNROLL_2 _Pragma("clang loop unroll_count(2)")
#else
#define UNROLL_2 _Pragma("GCC unroll 2")
#endif

/* A tile's vector: whole, or the last one at the right edge. */
V_FN vf
tile_load(bool part, const float *p, const tile_args *a)
{
    return part ? v_load_n(p, a->last) : v_load(p);
}

/* c = C + c, or 0 + c */
V_FN void
tile_add(int mr, int nv, bool edge, vf c[TILE_ROWS][TILE_VECTORS], const tile_args *a)
{
    static const float zeros[TILE_VECTORS * VLEN];
    const bool begin = a->into == ATTN_BEGIN;
    const float *row = begin ? zeros : a->C;
    UNROLL
    for (int i = 0; i < mr; i++) {
        UNROLL
        for (int j = 0; j < nv; j++) {
            c[i][j] = v_add(tile_load(edge && j == nv - 1, row + j * VLEN, a), c[i][j]);
        }
        row += begin ? 0 : a->ldc;
    }
}

/* Rows are walked, not multiplied out: gcc would keep all offsets on the stack. */
V_FN void
tile_store(int mr, int nv, bool edge, tile_put put, vf c[TILE_ROWS][TILE_VECTORS],
           const tile_args *a)
{
    float *row = a->C;
    UNROLL
    for (int i = 0; i < mr; i++) {
        UNROLL
        for (int j = 0; j < nv; j++) {
            const bool part = edge && j == nv - 1;
            float *to = row + j * VLEN;
            vf r = c[i][j];
            if (put == PUT_RESCALE && a->scale == NULL) {
                r = v_add(tile_load(part, to, a), r);
            } else if (put == PUT_RESCALE) {
                r = v_fma(tile_load(part, to, a), v_load(a->scale + j * VLEN), r);
            } else if (put == PUT_FACTOR) {
                r = v_mul(r, v_set1(*a->scale));
            }
            if (part) {
                v_store_n(to, r, a->last);
            } else {
                v_store(to, r);
            }
        }
        row += a->ldc;
    }
}

V_FN void
tile(int mr, int nv, bool edge, tile_step step, tile_put put, const tile_args *a)
{
    vf c[TILE_ROWS][TILE_VECTORS];
    vm m[TILE_VECTORS];
    UNROLL
    for (int i = 0; i < mr; i++) {
        UNROLL
        for (int j = 0; j < nv; j++) {
            c[i][j] = v_zero();
        }
    }
    UNROLL_2
    for (int64_t t = 0; t < a->K; t++) {
        const float *x_t = a->X + t * a->sx, *y_t = a->Y + t * a->ldy;
        vf y[TILE_VECTORS];
        UNROLL
        for (int j = 0; j < nv; j++) {
            y[j] = tile_load(edge && j == nv - 1, y_t + j * VLEN, a);
            if (step == STEP_LIVE) {
                m[j] = m_from_bits(a->live[t] >> (a->lane + j * VLEN));
            }
        }
        UNROLL
        for (int i = 0; i < mr; i++) {
            vf x = v_set1(x_t[i * a->ldx]);
            UNROLL
            for (int j = 0; j < nv; j++) {
                if (step == STEP_PRODUCT) {
                    c[i][j] = v_fma(x, y[j], c[i][j]);
                } else if (step == STEP_LIVE) {
                    c[i][j] = v_fma_if(m[j], x, y[j], c[i][j]);
                } else {
                    vf d = v_sub(y[j], x);
                    c[i][j] = v_fma(d, d, c[i][j]);
                }
            }
        }
    }
    if (put == PUT_INTO && a->into != ATTN_SET) {
        tile_add(mr, nv, edge, c, a);
    }
    tile_store(mr, nv, edge, put, c, a);
}

/* Most rows of a tile of nv vectors. */
V_FN int
tile_rows(int nv)
{
    return nv == TILE_VECTORS ? WIDE_ROWS : TILE_ROWS;
}

/* Products have tiles of any number of rows. Those of other steps have all rows, or two, or
 * one: squares are two operations a term, so that two rows, too, keep the pipes busy, and
 * dead lanes are passed over only where they would not add 0. */
V_FN bool
has_tile(int mr, int nv, tile_step step)
{
    return mr == tile_rows(nv) || mr <= (step == STEP_PRODUCT ? tile_rows(nv) : 2);
}

/* A tile of so many rows: as a constant. */
V_FN void
tile_of(int mr, int nv, bool edge, tile_step step, tile_put put, const tile_args *a)
{
#define TILE_CASE(n)                         \
    case n:                                  \
        if (has_tile(n, nv, step)) {         \
            tile(n, nv, edge, step, put, a); \
        }                                    \
        break
    switch (mr) {
        TILE_CASE(1);
        TILE_CASE(2);
        TILE_CASE(3);
        TILE_CASE(4);
        TILE_CASE(5);
        TILE_CASE(6);
        TILE_CASE(7);
        TILE_CASE(8);
    }
#undef TILE_CASE
}

/* Of a sum over t < K: only from the first to the last t at which any of n lanes is
 * live. The others add 0. */
V_FN void
live_terms(tile_args *a, int n)
{
    const uint64_t lanes = ~(uint64_t)0 >> (64 - n) << a->lane;
    int64_t first = 0, end = a->K;
    while (first < end && (a->live[first] & lanes) == 0) {
        first++;
    }
    while (first < end && (a->live[end - 1] & lanes) == 0) {
        end--;
    }
    a->X += first * a->sx;
    a->Y += first * a->ldy;
    a->live += first;
    a->K = end - first;
}

/* All rows of one panel of nv vectors. Tiles of products are as equal as can be: one of one
 * row or two waits for its sums. 25 rows of 256 features, AVX2: 94 GF/s in five tiles of
 * five; in four of six and one of one, 84. */
V_FN void
panel(int nv, bool edge, tile_step step, tile_put put, tile_args a, int64_t rows)
{
    if (put == PUT_RESCALE && a.live != NULL) {
        live_terms(&a, nv * VLEN);
    }
    const int full = tile_rows(nv);
    const int64_t tiles = (rows + full - 1) / full;
    const int64_t most = tiles > 1 ? (rows + tiles - 1) / tiles : rows;
    for (int64_t fewer = tiles * most - rows; rows > 0;) {
        int mr = rows >= full ? full : rows > 1 ? 2 : 1;
        if (step == STEP_PRODUCT) {
            mr = (int)(rows > fewer * (most - 1) ? most : most - 1);
        }
        tile_of(mr, nv, edge, step, put, &a);
        a.C += mr * a.ldc;
        a.X += mr * a.ldx;
        rows -= mr;
    }
}

/* The first column of the panel moves from j to j + n. */
V_FN void
next_panel(tile_args *a, tile_put put, int n)
{
    a->C += n;
    a->Y += n;
    a->lane += n;
    if (put == PUT_RESCALE && a->scale != NULL) {
        a->scale += n;
    }
}

/* Panels as wide as tiles are, then narrower ones, of two vectors at least: a tile of 8 x 3
 * has as many sums as one of 6 x 4. How many columns are left. */
V_FN int64_t
whole_panels(tile_step step, tile_put put, tile_args *a, int64_t rows, int64_t cols)
{
    UNROLL
    for (int nv = TILE_VECTORS; nv > 1; nv--) {
        for (; cols >= nv * VLEN; cols -= nv * VLEN) {
            panel(nv, false, step, put, *a, rows);
            next_panel(a, put, nv * VLEN);
        }
    }
    return cols;
}

/* Panels that lie wholly inside `lanes`, a multiple of 16: no edges. */
V_FN void
panels_of_lanes(tile_step step, tile_put put, tile_args a, int64_t rows, int lanes)
{
    int64_t left = whole_panels(step, put, &a, rows, lanes);
    if (2 * VLEN > 16 && left > 0) { /* one vector of 16 */
        panel(1, false, step, put, a, rows);
    }
}

/* Panels of any width: whole ones, then two vectors or one with a right edge. */
V_FN void
panels(tile_step step, tile_put put, tile_args a, int64_t rows, int64_t cols)
{
    int64_t left = whole_panels(step, put, &a, rows, cols);
    if (left > VLEN) {
        a.last = (int)left - VLEN;
        panel(2, true, step, put, a, rows);
    } else if (left > 0) {
        a.last = (int)left;
        panel(1, true, step, put, a, rows);
    }
}

static void
matmul(float *C, int64_t ldc, const float *X, int64_t ldx, int64_t sx, const float *Y,
       int64_t ldy, int64_t rows, int64_t cols, int64_t K, attn_into into)
{
    if (cols == 1 && ldc == 1 && sx == 1 && ldy == 1) {
        for (int64_t i = 0; into == ATTN_BEGIN && i < rows; i++) {
            C[i] = 0.0f;
        }
        matmul_query(C, X, ldx, Y, rows, K, into != ATTN_SET);
        return;
    }
    tile_args a = {.C = C,
                   .X = X,
                   .Y = Y,
                   .ldc = ldc,
                   .ldx = ldx,
                   .sx = sx,
                   .ldy = ldy,
                   .into = into};
    int64_t t = 0;
    do { /* once at least: K = 0 must still set C to 0 */
        a.K = K - t < ATTN_CHUNK ? K - t : ATTN_CHUNK;
        panels(STEP_PRODUCT, PUT_INTO, a, rows, cols);
        a.into = ATTN_ADD;
        a.X += a.K * sx;
        a.Y += a.K * ldy;
        t += a.K;
    } while (t < K);
}

/* x[i], i < n: is one of them an infinity or NaN? */
V_FN uint64_t
some_infinite(const float *x, int64_t n)
{
    uint64_t some = 0;
    for (int64_t i = 0; i < n; i += VLEN) {
        vf v = n - i >= VLEN ? v_load(x + i) : v_load_n(x + i, (int)(n - i));
        some |= m_to_bits(v_not_lt(v_abs(v), v_set1(INFINITY)));
    }
    return some;
}

/* y[l], l < lanes, a bit of `live` each: is one of the dead not 0? */
V_FN uint64_t
some_dead_count(const float *y, int lanes, uint64_t live)
{
    uint64_t some = 0;
    for (int l = 0; l < lanes; l += VLEN) {
        vm counts = v_not_lt(v_abs(v_load(y + l)), v_set1(0x1p-149f));
        some |= m_to_bits(counts) & ~(live >> l);
    }
    return some;
}

/* True if the dead pairs add 0 to a pool: their Y is 0, as softmax leaves it, and their X is
 * finite. Only keys with a dead lane are tested, from the first to the last live key: the
 * others are not multiplied, and may be uninitialised. */
static bool
dead_add_zero(const tile_args *all, int64_t rows, int lanes)
{
    const uint64_t every = ~(uint64_t)0 >> (64 - lanes);
    tile_args a = *all;
    uint64_t counts = 0;
    live_terms(&a, lanes);
    for (int64_t t = 0; t < a.K && counts == 0; t++) {
        if ((a.live[t] & every) != every) {
            counts = some_dead_count(a.Y + t * lanes, lanes, a.live[t]) |
                     some_infinite(a.X + t * a.sx, rows);
        }
    }
    return counts == 0;
}

/* How many lanes are pooled at a time: all 64, or 32 if so the sums have a fourth fewer
 * terms. Along a diagonal the first half has its last key long before the second. */
static int
lanes_together(const tile_args *a, int lanes)
{
    if (lanes < 64 || a->live == NULL) {
        return lanes;
    }
    tile_args all = *a, low = *a, high = *a;
    high.lane = 32;
    live_terms(&all, 64);
    live_terms(&low, 32);
    live_terms(&high, 32);
    return low.K + high.K < 2 * all.K - all.K / 4 ? 32 : 64;
}

/* ATTN_POOL, half a tile of keys, at a time: X (64 rows of values) and Y (64 rows of P)
 * then stay in L1 while all rows of C pass over them. Measured on Sapphire Rapids, Dv =
 * 64: 138 against 113 GF/s for 128 keys at once.
 *
 * Each pair is asked whether it is live only where that matters. With AVX2, which has no
 * masks, that makes (8, 8, 512, 512, 64) causal 38.6 -> 32.2 ms forward, 88.8 -> 81.4
 * backward; under a random mask 24.6 -> 16.3, 44.0 -> 35.3 for a quarter of the heads. */
static void
pool(float *C, const float *X, int64_t ldx, const float *Y, int lanes, int64_t rows,
     int K, const float *alpha, const uint64_t *live)
{
    if (lanes == 1) {
        pool_query(C, X, ldx, Y, rows, K, alpha, live);
        return;
    }
    tile_args a = {.C = C,
                   .X = X,
                   .Y = Y,
                   .ldc = lanes,
                   .ldx = 1,
                   .sx = ldx,
                   .ldy = lanes,
                   .scale = alpha,
                   .live = live};
    for (int t = 0; t < K; t += ATTN_POOL) {
        a.K = K - t < ATTN_POOL ? K - t : ATTN_POOL;
        const bool dead_too = live == NULL || dead_add_zero(&a, rows, lanes);
        const int n = lanes_together(&a, lanes);
        for (int l = 0; l < lanes; l += n) {
            tile_args part = a;
            next_panel(&part, PUT_RESCALE, l);
            if (dead_too) {
                panels_of_lanes(STEP_PRODUCT, PUT_RESCALE, part, rows, n);
            } else {
                panels_of_lanes(STEP_LIVE, PUT_RESCALE, part, rows, n);
            }
        }
        a.X += a.K * ldx;
        a.Y += a.K * lanes;
        a.scale = NULL; /* once is enough */
        a.live = live == NULL ? NULL : a.live + a.K;
    }
}

static void
distance(float *S, const float *X, int64_t ldx, const float *Y, int lanes, int rows,
         int64_t K, float factor)
{
    if (lanes == 1) {
        all_row_sums(true, false, S, X, ldx, Y, rows, K, factor);
        return;
    }
    tile_args a = {.C = S,
                   .X = X,
                   .Y = Y,
                   .ldc = lanes,
                   .ldx = ldx,
                   .sx = 1,
                   .ldy = lanes,
                   .K = K,
                   .scale = &factor};
    panels_of_lanes(STEP_DISTANCE, PUT_FACTOR, a, rows, lanes);
}

/* One row at a time over its live lanes only, four vectors wide: a dead pair costs
 * nothing. */
static void
matmul_live(float *C, int64_t ldc, const float *X, int lanes, const float *Y,
            int64_t ldy, int rows, int64_t cols, int K, const uint64_t *live)
{
    const uint64_t within = K < 64 ? ((uint64_t)1 << K) - 1 : ~(uint64_t)0;
    for (int i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j += 4 * VLEN) {
            vf c[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
            int n[4];
            for (int v = 0; v < 4; v++) {
                n[v] = lanes_left(cols - j - v * VLEN);
            }
            for (uint64_t w = live[i] & within; w != 0; w &= w - 1) {
                int t = __builtin_ctzll(w);
                const float *y = Y + t * ldy + j;
                vf x = v_set1(X[i * lanes + t]);
                if (n[3] == VLEN) {
                    UNROLL
                    for (int v = 0; v < 4; v++) {
                        c[v] = v_fma(x, v_load(y + v * VLEN), c[v]);
                    }
                } else {
                    UNROLL
                    for (int v = 0; v < 4; v++) {
                        if (n[v] > 0) {
                            c[v] = v_fma(x, v_load_n(y + v * VLEN, n[v]), c[v]);
                        }
                    }
                }
            }
            float *to = C + i * ldc + j;
            for (int v = 0; v < 4 && n[v] > 0; v++) {
                v_store_n(to + v * VLEN, v_add(v_load_n(to + v * VLEN, n[v]), c[v]),
                          n[v]);
            }
        }
    }
}
