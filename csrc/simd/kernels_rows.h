/*
 * kernels_rows.h -- rows in memory: weights, dot product, maximum. Lanes are keys (or
 * features): 16 canonical lanes, joined by one fixed tree.
 */

enum { GROUP = 16 / VLEN }; /* vectors that hold the 16 canonical lanes */

V_FN void
set_group(vf g[GROUP], vf x)
{
    UNROLL
    for (int v = 0; v < GROUP; v++) {
        g[v] = x;
    }
}

/* The elements of g whose bit is not set become `rest`. */
V_FN void
fill_dead(vf g[GROUP], uint64_t live, vf rest)
{
    UNROLL
    for (int v = 0; v < GROUP; v++) {
        g[v] = v_select(m_from_bits(live >> (v * VLEN)), g[v], rest);
    }
}

/* The next numbers of a row in so many vectors, n of them present. Inlined with a constant
 * n that fills them there is nothing to decide; so every loop over a row takes its whole
 * groups first. */
V_FN void
load_vectors(int vectors, vf *to, const float *x, int64_t n)
{
    UNROLL
    for (int v = 0; v < vectors; v++) {
        to[v] = n >= vectors * VLEN ? v_load(x + v * VLEN)
                                    : v_load_n(x + v * VLEN, lanes_left(n - v * VLEN));
    }
}

V_FN void
store_vectors(int vectors, float *out, const vf *from, int64_t n)
{
    UNROLL
    for (int v = 0; v < vectors; v++) {
        if (n >= vectors * VLEN) {
            v_store(out + v * VLEN, from[v]);
        } else {
            v_store_n(out + v * VLEN, from[v], lanes_left(n - v * VLEN));
        }
    }
}

V_FN void
load_group(vf g[GROUP], const float *x, int64_t n)
{
    load_vectors(GROUP, g, x, n);
}

V_FN void
store_group(float *out, const vf g[GROUP], int64_t n)
{
    store_vectors(GROUP, out, g, n);
}

/* One row: its first n elements, of which those with a byte of 0 in the mask, if there
 * is one, are dead. `ahead` numbers further begins a row to come soon, of which the
 * cache is told in time; 0: this row itself. */
typedef struct {
    int64_t n;
    const uint8_t *mask;
    int64_t ahead;
} row_shape;

/* Tells the cache of what lies `ahead` numbers behind p, of this array or not. */
V_FN void
fetch(const float *p, int64_t ahead)
{
    __builtin_prefetch((const void *)((uintptr_t)p + (uintptr_t)ahead * sizeof *p));
}

/* The same, where it will be written: a line that is stored to is brought first. */
V_FN void
fetch_to_write(const float *p, int64_t ahead)
{
    __builtin_prefetch((const void *)((uintptr_t)p + (uintptr_t)ahead * sizeof *p), 1);
}

V_FN void
dot_step(const float *x, const float *y, int64_t n, bool masked, uint64_t live,
         vf sum[GROUP])
{
    vf a[GROUP], b[GROUP];
    load_group(a, x, n);
    load_group(b, y, n);
    if (masked) {
        fill_dead(a, live, v_zero());
        fill_dead(b, live, v_zero());
    }
    UNROLL
    for (int v = 0; v < GROUP; v++) {
        sum[v] = v_fma(a[v], b[v], sum[v]);
    }
}

/* sum_j x[j] y[j] of the live; dx is where the result of the row will go. */
V_FN float
dot_of_row(const float *x, const float *y, const float *dx, const row_shape *s,
           bool masked)
{
    vf sum[GROUP];
    uint64_t live = 0;
    int64_t j = 0;
    set_group(sum, v_zero());
    for (; j + 16 <= s->n; j += 16) {
        if (masked) {
            live = j % WORD == 0 ? live_word(s->mask, j, s->n) : live >> 16;
        }
        fetch(x + j, s->ahead);
        fetch(y + j, s->ahead);
        fetch(dx + j, s->ahead);
        dot_step(x + j, y + j, 16, masked, live, sum);
    }
    if (j < s->n) {
        live = masked ? live_word(s->mask, j, s->n) : 0;
        dot_step(x + j, y + j, s->n - j, masked, live, sum);
    }
    return v_sum16(sum);
}

static float
dot_row(const float *x, const float *y, int64_t n)
{
    const row_shape s = {.n = n};
    return dot_of_row(x, y, x, &s, false);
}

static float
absmax_row(const float *x, int64_t n)
{
    vf top[GROUP], g[GROUP];
    set_group(top, v_zero());
    for (int64_t j = 0; j < n; j += 16) {
        load_group(g, x + j, n - j);
        UNROLL
        for (int v = 0; v < GROUP; v++) {
            top[v] = v_max(v_abs(g[v]), top[v]);
        }
    }
    return v_max16(top);
}
