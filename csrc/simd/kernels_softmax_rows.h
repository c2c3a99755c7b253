/*
 * kernels_softmax_rows.h -- softmax of rows in memory, forward and backward.
 *
 * Lanes are keys, as in kernels_rows.h. In short rows the trees would cost more than
 * the row; there lanes are rows, and each of the 16 canonical lanes is a register of
 * its own, which gives the same bits. Measured with AVX-512, ns for a row in a cache,
 * one way and the other: 17 and 8 for n = 5, 28 and 15 for n = 17, 45 and 32 for n =
 * 50, 33 and 36 for n = 64.
 *
 * Memory is passed over once: a row stays in the first cache from its first look to its
 * last, and while it is worked on the next one is fetched. (64, 512, 512) take 9.4 ms
 * with and 11.5 ms without that, a copy 9.4. Stores past the caches would save another
 * 1.3 ms where the output has been written before, but lose 2.3 ms in fresh memory.
 */
#include <string.h>

/* ---- a row ----------------------------------------------------------------------- */

V_FN void
max_step(float *out, const float *x, int64_t n, bool masked, uint64_t live,
         vf top[GROUP])
{
    vf g[GROUP];
    load_group(g, x, n);
    if (masked || n < 16) {
        fill_dead(g, live, v_set1(-INFINITY));
    }
    if (masked) {
        store_group(out, g, n);
    }
    UNROLL
    for (int v = 0; v < GROUP; v++) {
        top[v] = v_max(g[v], top[v]);
    }
}

/* The largest live element. Under a mask, out = x with -inf in place of the dead. */
V_FN vf
max_of_row(float *out, const float *x, const row_shape *s, bool masked)
{
    const uint8_t *mask = masked ? s->mask : NULL;
    vf top[GROUP];
    uint64_t live = 0;
    int64_t j = 0;
    set_group(top, v_set1(-INFINITY));
    for (; j + 16 <= s->n; j += 16) {
        if (masked) {
            live = j % WORD == 0 ? live_word(mask, j, s->n) : live >> 16;
        }
        max_step(out + j, x + j, 16, masked, live, top);
    }
    if (j < s->n) {
        max_step(out + j, x + j, s->n - j, masked, live_word(mask, j, s->n), top);
    }
    return v_set1(v_max16(top));
}

/* A group at a time: twice as many numbers together make a row of 512 another 7 % faster,
 * but one of 80, with its rest of 16, 12 % slower. */
V_FN void
exp_step(float *out, const float *x, int64_t n, vf m, vf sum[GROUP])
{
    vf g[GROUP];
    load_group(g, x, n);
    UNROLL
    for (int v = 0; v < GROUP; v++) {
        g[v] = v_sub(g[v], m);
    }
    v_exp_all(GROUP, g);
    if (n < 16) {
        fill_dead(g, live_word(NULL, 0, n), v_zero());
    }
    UNROLL
    for (int v = 0; v < GROUP; v++) {
        sum[v] = v_add(sum[v], g[v]);
    }
    store_group(out, g, n);
}

/* out = exp(from - m); the sum. `from` is x, or out, whose values max_of_row left there
 * under a mask. */
V_FN float
exp_row(float *out, const float *x, const float *from, const row_shape *s, vf m)
{
    vf sum[GROUP];
    int64_t j = 0;
    set_group(sum, v_zero());
    for (; j + 16 <= s->n; j += 16) {
        fetch(x + j, s->ahead);
        fetch(out + j, s->ahead);
        exp_step(out + j, from + j, 16, m, sum);
    }
    if (j < s->n) {
        exp_step(out + j, from + j, s->n - j, m, sum);
    }
    return v_sum16(sum);
}

/* a / total, given factor = 1 / total: the product and one correction of it round as
 * the division does, unless the quotient is subnormal (Markstein 1990), in a third of
 * the time. */
V_FN vf
quotient(vf a, vf total, vf factor)
{
    vf q = v_mul(a, factor);
    return v_fma(v_fnma(q, total, a), factor, q);
}

V_FN void
divide_step(float *x, int64_t n, vf total, vf factor)
{
    vf g[GROUP];
    load_group(g, x, n);
    UNROLL
    for (int v = 0; v < GROUP; v++) {
        g[v] = quotient(g[v], total, factor);
    }
    store_group(x, g, n);
}

/* What is left of a row once its exponentials have a sum. */
V_FN void
divide_row(float *out, const row_shape *s, float sum)
{
    vf total = v_set1(sum), factor = v_div(v_set1(1.0f), total);
    int64_t j = 0;
    if (s->mask != NULL && isnan(sum)) { /* so is the row, but not where it is dead */
        for (; j < s->n; j++) {
            out[j] = s->mask[j] != 0 ? NAN : 0.0f;
        }
        return;
    }
    for (; j + 16 <= s->n; j += 16) {
        divide_step(out + j, 16, total, factor);
    }
    if (j < s->n) {
        divide_step(out + j, s->n - j, total, factor);
    }
}

/* ---- short rows: lanes are rows -------------------------------------------------- */

enum { SHORT = 63 }; /* most elements of a short row */

/* VLEN rows side by side. */
typedef struct {
    float column[(SHORT + 1) * VLEN]; /* [element][row] */
    uint64_t live[VLEN];              /* of each row */
    bool alike;                       /* all of live is live[0] */
    int64_t longest;
} short_rows;

V_FN vm
live_of_short(const short_rows *s, bool alike, int i, int64_t c)
{
    return m_from_bits(s->live[alike ? 0 : i] >> c);
}

/* The rows go into columns, -inf where they are dead; the largest of each. */
V_FN vf
load_short(short_rows *s, const float *x, int64_t N, const int64_t *n, bool alike)
{
    vf top = v_set1(-INFINITY);
    for (int64_t c = 0; c < s->longest; c += VLEN) {
        vf v[VLEN];
        UNROLL
        for (int i = 0; i < VLEN; i++) {
            vf row = v_load_n(x + i * N + c, lanes_left(n[alike ? 0 : i] - c));
            v[i] = v_select(live_of_short(s, alike, i, c), row, v_set1(-INFINITY));
        }
        v_transpose(v);
        UNROLL
        for (int i = 0; i < VLEN; i++) {
            v_store(s->column + (c + i) * VLEN, v[i]);
            top = v_max(v[i], top);
        }
    }
    return top;
}

/* TOGETHER columns from c on, as many of them as there are: with more lanes than that,
 * those from `longest` on are -inf. */
V_FN void
exp_columns(short_rows *s, int64_t c, vf top, vf *sum)
{
    vf e[TOGETHER];
    UNROLL
    for (int i = 0; i < TOGETHER; i++) {
        bool there = (int)VLEN >= (int)TOGETHER || c + i < s->longest;
        e[i] = there ? v_sub(v_load(s->column + (c + i) * VLEN), top) : v_zero();
    }
    v_exp_all(TOGETHER, e);
    UNROLL
    for (int i = 0; i < TOGETHER; i++) {
        if ((int)VLEN >= (int)TOGETHER || c + i < s->longest) {
            v_store(s->column + (c + i) * VLEN, e[i]);
            sum[i] = v_add(sum[i], e[i]);
        }
    }
}

/* column = exp(column - top); the sum of each row, on its 16 canonical lanes. */
V_FN vf
exp_short(short_rows *s, vf top)
{
    vf sum[16];
    UNROLL
    for (int l = 0; l < 16; l++) {
        sum[l] = v_zero();
    }
    for (int64_t c = 0; c < s->longest; c += 16) {
        UNROLL
        for (int l = 0; l < 16; l += TOGETHER) {
            if (c + l < s->longest) {
                exp_columns(s, c + l, top, sum + l);
            }
        }
    }
    UNROLL
    for (int half = 8; half > 0; half /= 2) {
        UNROLL
        for (int l = 0; l < half; l++) {
            sum[l] = v_add(sum[l], sum[l + half]);
        }
    }
    return sum[0];
}

V_FN void
store_short(float *out, int64_t N, const short_rows *s, vf total, bool alike)
{
    vf factor = v_div(v_set1(1.0f), total);
    int64_t c = 0;
    for (; c < s->longest; c += VLEN) {
        vf v[VLEN];
        int columns = lanes_left(N - c);
        UNROLL
        for (int i = 0; i < VLEN; i++) {
            v[i] = quotient(v_load(s->column + (c + i) * VLEN), total, factor);
        }
        v_transpose(v);
        UNROLL
        for (int i = 0; i < VLEN; i++) {
            vf row = v_select(live_of_short(s, alike, i, c), v[i], v_zero());
            v_store_n(out + i * N + c, row, columns);
        }
    }
    for (int i = 0; c < N && i < VLEN; i++) {
        memset(out + i * N + c, 0, (size_t)(N - c) * sizeof *out);
    }
}

V_FN void
softmax_short(float *out, const float *x, int64_t N, const int64_t *n, short_rows *s)
{
    vf top = s->alike ? load_short(s, x, N, n, true) : load_short(s, x, N, n, false);
    vf total = exp_short(s, top);
    if (s->alike) {
        store_short(out, N, s, total, true);
    } else {
        store_short(out, N, s, total, false);
    }
}

/* Who takes part in the next VLEN rows; false: one of them is not short. */
static bool
find_short(short_rows *s, const int64_t *n, const uint8_t *const *mask)
{
    s->longest = 0;
    s->alike = mask == NULL;
    for (int i = 0; i < VLEN; i++) {
        s->longest = n[i] > s->longest ? n[i] : s->longest;
        s->alike = s->alike && n[i] == n[0];
    }
    for (int i = 0; i < (s->alike ? 1 : VLEN) && s->longest <= SHORT; i++) {
        s->live[i] = n[i] > 0 ? live_word(mask ? mask[i] : NULL, 0, n[i]) : 0;
    }
    return s->longest <= SHORT;
}

/* ---- several rows ---------------------------------------------------------------- */

/* How far ahead of itself a pass over rows of N fetches: whole rows, 2 KiB at least. */
V_FN int64_t
fetch_ahead(int64_t N)
{
    return N >= 512 ? N : (511 / N + 1) * N;
}

/* out[n] to out[N - 1] = 0. */
V_FN void
zero_rest(float *out, int64_t n, int64_t N)
{
    if (n < N) {
        memset(out + n, 0, (size_t)(N - n) * sizeof *out);
    }
}

V_FN row_shape
shape_of_row(int64_t N, int i, const int64_t *n, const uint8_t *const *mask)
{
    return (row_shape){n[i], mask != NULL ? mask[i] : NULL, fetch_ahead(N)};
}

V_FN vf
top_of_row(float *out, const float *x, const row_shape *s)
{
    return s->mask != NULL ? max_of_row(out, x, s, true) : max_of_row(out, x, s, false);
}

/* The maximum of a row is found before the row before it is divided: neither then waits for
 * a reduction over lanes. */
V_FN void
softmax_long(float *out, const float *x, int64_t N, int rows, const int64_t *n,
             const uint8_t *const *mask)
{
    row_shape s = shape_of_row(N, 0, n, mask);
    vf top = top_of_row(out, x, &s);
    for (int i = 0; i < rows; i++, out += N, x += N) {
        row_shape next = s;
        float sum = exp_row(out, x, s.mask != NULL ? out : x, &s, top);
        if (i + 1 < rows) {
            next = shape_of_row(N, i + 1, n, mask);
            top = top_of_row(out + N, x + N, &next);
        }
        divide_row(out, &s, sum);
        zero_rest(out, s.n, N);
        s = next;
    }
}

static void
softmax_rows(float *out, const float *x, int64_t N, int rows, const int64_t *n,
             const uint8_t *const *mask)
{
    short_rows together;
    int i = 0;
    for (; i + VLEN <= rows && find_short(&together, n + i, mask ? mask + i : NULL);
         i += VLEN) {
        softmax_short(out + i * N, x + i * N, N, n + i, &together);
    }
    if (i < rows) {
        softmax_long(out + i * N, x + i * N, N, rows - i, n + i,
                     mask ? mask + i : NULL);
    }
}

/* ---- backward -------------------------------------------------------------------- */

V_FN void
backward_step(float *dx, const float *dw, const float *w, int64_t n, vf total,
              bool masked, uint64_t live)
{
    vf a[GROUP], b[GROUP];
    load_group(a, w, n);
    load_group(b, dw, n);
    UNROLL
    for (int v = 0; v < GROUP; v++) {
        a[v] = v_mul(a[v], v_sub(b[v], total));
    }
    if (masked) {
        fill_dead(a, live, v_zero());
    }
    store_group(dx, a, n);
}

V_FN void
softmax_row_backward(float *dx, const float *dw, const float *w, const row_shape *s,
                     bool masked)
{
    vf total = v_set1(dot_of_row(w, dw, dx, s, masked));
    uint64_t live = 0;
    int64_t j = 0;
    for (; j + 16 <= s->n; j += 16) {
        if (masked) {
            live = j % WORD == 0 ? live_word(s->mask, j, s->n) : live >> 16;
        }
        backward_step(dx + j, dw + j, w + j, 16, total, masked, live);
    }
    if (j < s->n) {
        live = masked ? live_word(s->mask, j, s->n) : 0;
        backward_step(dx + j, dw + j, w + j, s->n - j, total, masked, live);
    }
}

static void
softmax_rows_backward(float *dx, const float *dw, const float *w, int64_t N, int rows,
                      const int64_t *n, const uint8_t *const *mask)
{
    row_shape s = {.ahead = fetch_ahead(N)};
    for (int i = 0; i < rows; i++) {
        float *dx_i = dx + i * N;
        s.n = n[i];
        if (mask == NULL) {
            softmax_row_backward(dx_i, dw + i * N, w + i * N, &s, false);
        } else {
            s.mask = mask[i];
            softmax_row_backward(dx_i, dw + i * N, w + i * N, &s, true);
        }
        zero_rest(dx_i, s.n, N);
    }
}
