/*
 * kernels_rows.h -- rows in memory: softmax, dot product, maximum. Lanes are keys (or
 * features): 16 canonical lanes, joined by one fixed tree.
 */

enum { GROUP = 16 / VLEN }; /* vectors that hold the 16 canonical lanes */

static void
prob_row(float *w, int64_t n, float m, float inv)
{
    for (int64_t j = 0; j < n; j += VLEN) {
        int k = lanes_left(n - j);
        vf p = v_exp2(v_sub(v_load_n(w + j, k), v_set1(m)));
        v_store_n(w + j, v_mul(p, v_set1(inv)), k);
    }
}

/* The elements of g that are not live become `rest`; a whole group needs no looking. */
V_FN void
fill_dead(vf g[GROUP], bool whole, uint64_t live, vf rest)
{
    if (!whole) {
        UNROLL
        for (int v = 0; v < GROUP; v++) {
            g[v] = v_select(m_from_bits(live >> (v * VLEN)), g[v], rest);
        }
    }
}

/* The next 16 numbers of a row, n of them present. */
V_FN void
load_group(vf g[GROUP], const float *x, int64_t n)
{
    UNROLL
    for (int v = 0; v < GROUP; v++) {
        g[v] = n >= 16 ? v_load(x + v * VLEN)
                       : v_load_n(x + v * VLEN, lanes_left(n - v * VLEN));
    }
}

V_FN void
store_group(float *out, const vf g[GROUP], int64_t n)
{
    UNROLL
    for (int v = 0; v < GROUP; v++) {
        if (n >= 16) {
            v_store(out + v * VLEN, g[v]);
        } else {
            v_store_n(out + v * VLEN, g[v], lanes_left(n - v * VLEN));
        }
    }
}

V_FN vf
max_of_row(const float *x, int64_t n, const uint8_t *mask)
{
    vf top[GROUP], g[GROUP];
    for (int v = 0; v < GROUP; v++) {
        top[v] = v_set1(-INFINITY);
    }
    for (int64_t j = 0; j < n; j += 16) {
        load_group(g, x + j, n - j);
        fill_dead(g, is_whole(mask, n - j), live_bits(mask, j, n), v_set1(-INFINITY));
        UNROLL
        for (int v = 0; v < GROUP; v++) {
            top[v] = v_max(g[v], top[v]);
        }
    }
    return v_set1(v_max16(top));
}

/* out = exp(x - m), 0 where not live; the sum. */
V_FN vf
exp_row(float *out, const float *x, int64_t n, const uint8_t *mask, vf m)
{
    vf sum[GROUP], g[GROUP];
    for (int v = 0; v < GROUP; v++) {
        sum[v] = v_zero();
    }
    for (int64_t j = 0; j < n; j += 16) {
        load_group(g, x + j, n - j);
        UNROLL
        for (int v = 0; v < GROUP; v++) {
            g[v] = v_exp(v_sub(g[v], m));
        }
        fill_dead(g, is_whole(mask, n - j), live_bits(mask, j, n), v_zero());
        UNROLL
        for (int v = 0; v < GROUP; v++) {
            sum[v] = v_add(sum[v], g[v]);
        }
        store_group(out + j, g, n - j);
    }
    return v_set1(v_sum16(sum));
}

V_FN void
softmax_live(float *out, const float *x, int64_t n, const uint8_t *mask)
{
    vf g[GROUP], total = exp_row(out, x, n, mask, max_of_row(x, n, mask));
    for (int64_t j = 0; j < n; j += 16) {
        load_group(g, out + j, n - j);
        UNROLL
        for (int v = 0; v < GROUP; v++) {
            g[v] = v_div(g[v], total);
        }
        if (mask != NULL) { /* the total may be NaN */
            fill_dead(g, false, live_bits(mask, j, n), v_zero());
        }
        store_group(out + j, g, n - j);
    }
}

V_FN float
dot_live(const float *x, const float *y, int64_t n, const uint8_t *mask)
{
    vf a[GROUP], b[GROUP], sum[GROUP];
    for (int v = 0; v < GROUP; v++) {
        sum[v] = v_zero();
    }
    for (int64_t j = 0; j < n; j += 16) {
        load_group(a, x + j, n - j);
        load_group(b, y + j, n - j);
        fill_dead(a, is_whole(mask, n - j), live_bits(mask, j, n), v_zero());
        fill_dead(b, is_whole(mask, n - j), live_bits(mask, j, n), v_zero());
        UNROLL
        for (int v = 0; v < GROUP; v++) {
            sum[v] = v_fma(a[v], b[v], sum[v]);
        }
    }
    return v_sum16(sum);
}

V_FN void
softmax_backward_live(float *dx, const float *dw, const float *w, int64_t n,
                      const uint8_t *mask)
{
    vf a[GROUP], b[GROUP], total = v_set1(dot_live(w, dw, n, mask));
    for (int64_t j = 0; j < n; j += 16) {
        load_group(a, w + j, n - j);
        load_group(b, dw + j, n - j);
        UNROLL
        for (int v = 0; v < GROUP; v++) {
            a[v] = v_mul(a[v], v_sub(b[v], total));
        }
        if (mask != NULL) {
            fill_dead(a, false, live_bits(mask, j, n), v_zero());
        }
        store_group(dx + j, a, n - j);
    }
}

/* Each in two versions: without a mask there is nothing to look at. */
static void
softmax_row(float *out, const float *x, int64_t n, const uint8_t *mask)
{
    if (mask == NULL) {
        softmax_live(out, x, n, NULL);
    } else {
        softmax_live(out, x, n, mask);
    }
}

static void
softmax_row_backward(float *dx, const float *dw, const float *w, int64_t n,
                     const uint8_t *mask)
{
    if (mask == NULL) {
        softmax_backward_live(dx, dw, w, n, NULL);
    } else {
        softmax_backward_live(dx, dw, w, n, mask);
    }
}

static float
dot_row(const float *x, const float *y, int64_t n)
{
    return dot_live(x, y, n, NULL);
}

static float
absmax_row(const float *x, int64_t n)
{
    vf top[GROUP], g[GROUP];
    for (int v = 0; v < GROUP; v++) {
        top[v] = v_zero();
    }
    for (int64_t j = 0; j < n; j += 16) {
        load_group(g, x + j, n - j);
        UNROLL
        for (int v = 0; v < GROUP; v++) {
            top[v] = v_max(v_abs(g[v]), top[v]);
        }
    }
    return v_max16(top);
}
