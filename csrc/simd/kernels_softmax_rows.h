/*
 * kernels_softmax_rows.h -- softmax of rows in memory, forward and backward.
 *
 * Lanes are keys, as in kernels_rows.h; of short rows they are rows (kernels_softmax_short.h).
 *
 * Memory is passed over once: a row stays in the first cache from its first look to its
 * last, and while it is worked on the next one is fetched. (64, 512, 512) take 9.4 ms
 * with and 11.5 ms without that, a copy 9.4. Stores past the caches would save another
 * 1.3 ms where the output has been written before, but lose 2.3 ms in fresh memory.
 */
#include <string.h>

/* ---- rows side by side ----------------------------------------------------------- */

/* A row is a chain of some 200 cycles: its maximum, an exponential, the sum, a division. So
 * rows of one length take each step together, as many as fill the vectors that powers are
 * raised of together; `rows` is BESIDE or 1, a constant. Each has the sums that it has alone.
 * Sapphire Rapids, (64, 128, 128): 0.404 -> 0.334 ms, with AVX2 0.60 -> 0.52. Rows of 512
 * lost 4 to 10 %: they come from far away, and four streams of them slower than one. */
enum {
    BESIDE = (int)TOGETHER > (int)GROUP ? (int)TOGETHER / (int)GROUP : 1,
    LONG = 256
};

V_FN void
max_step(int rows, float *out, const float *x, int64_t N, int64_t n, bool masked,
         uint64_t live, vf top[BESIDE][GROUP])
{
    UNROLL
    for (int r = 0; r < rows; r++) {
        vf g[GROUP];
        load_group(g, x + r * N, n);
        if (masked || n < 16) {
            fill_dead(g, live, v_set1(-INFINITY));
        }
        if (masked) {
            store_group(out + r * N, g, n);
        }
        UNROLL
        for (int v = 0; v < GROUP; v++) {
            top[r][v] = v_max(g[v], top[r][v]);
        }
    }
}

V_FN void
max_steps(int rows, float *out, const float *x, int64_t N, const row_shape *s,
          bool masked, vf top[BESIDE][GROUP])
{
    const uint8_t *mask = masked ? s->mask : NULL;
    uint64_t live = 0;
    int64_t j = 0;
    for (; j + 16 <= s->n; j += 16) {
        if (masked) {
            live = j % WORD == 0 ? live_word(mask, j, s->n) : live >> 16;
        }
        max_step(rows, out + j, x + j, N, 16, masked, live, top);
    }
    if (j < s->n) {
        live = live_word(mask, j, s->n);
        max_step(rows, out + j, x + j, N, s->n - j, masked, live, top);
    }
}

/* The largest live element of each row. Under a mask, which goes with one row at a time,
 * out = x with -inf in place of the dead. */
V_FN void
max_of_rows(int rows, float *out, const float *x, int64_t N, const row_shape *s,
            vf max[BESIDE])
{
    vf top[BESIDE][GROUP];
    UNROLL
    for (int r = 0; r < rows; r++) {
        set_group(top[r], v_set1(-INFINITY));
    }
    if (rows == 1 && s->mask != NULL) {
        max_steps(1, out, x, N, s, true, top);
    } else {
        max_steps(rows, out, x, N, s, false, top);
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        max[r] = v_set1(v_max16(top[r]));
    }
}

/* A group of each row at a time: twice as many numbers of one row make one of 512 another 7
 * % faster, but one of 80, with its rest of 16, 12 % slower. */
V_FN void
exp_step(int rows, float *out, const float *x, int64_t N, int64_t n,
         const vf max[BESIDE], vf sum[BESIDE][GROUP])
{
    vf g[BESIDE * GROUP];
    UNROLL
    for (int r = 0; r < rows; r++) {
        load_group(g + r * GROUP, x + r * N, n);
        UNROLL
        for (int v = 0; v < GROUP; v++) {
            g[r * GROUP + v] = v_sub(g[r * GROUP + v], max[r]);
        }
        if (n < 16) { /* e^-inf is 0 */
            fill_dead(g + r * GROUP, live_word(NULL, 0, n), v_set1(-INFINITY));
        }
    }
    v_exp_all(rows * GROUP, g);
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < GROUP; v++) {
            sum[r][v] = v_add(sum[r][v], g[r * GROUP + v]);
        }
        store_group(out + r * N, g + r * GROUP, n);
    }
}

/* out = exp(from - max); the sums. `from` is x, or out, whose values max_of_rows left there
 * under a mask. */
V_FN void
exp_rows(int rows, float *out, const float *x, int64_t N, const row_shape *s,
         const vf max[BESIDE], float total[BESIDE])
{
    const float *from = s->mask != NULL ? out : x;
    vf sum[BESIDE][GROUP];
    int64_t j = 0;
    UNROLL
    for (int r = 0; r < rows; r++) {
        set_group(sum[r], v_zero());
    }
    for (; j + 16 <= s->n; j += 16) {
        UNROLL
        for (int r = 0; r < rows; r++) {
            fetch(x + r * N + j, s->ahead);
            fetch(out + r * N + j, s->ahead);
        }
        exp_step(rows, out + j, from + j, N, 16, max, sum);
    }
    if (j < s->n) {
        exp_step(rows, out + j, from + j, N, s->n - j, max, sum);
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        total[r] = v_sum16(sum[r]);
    }
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

/* Divide the row's exponentials by their sum. A row without elements has the sum 0. */
V_FN void
divide_row(float *out, const row_shape *s, float sum)
{
    if (s->n == 0) {
        return;
    }
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

/* Rows i, i + 1, ..., of which `rows` are worked on together. */
V_FN row_shape
shape_of_rows(int rows, int64_t N, int i, const int64_t *n, const uint8_t *const *mask)
{
    return (row_shape){n[i], mask != NULL ? mask[i] : NULL, fetch_ahead(rows * N)};
}

/* The maxima of rows are found before the rows before them are divided: neither then wait
 * for a reduction over lanes. */
V_FN void
softmax_long(int rows, float *out, const float *x, int64_t N, int count,
             const int64_t *n, const uint8_t *const *mask)
{
    row_shape s = shape_of_rows(rows, N, 0, n, mask);
    vf max[BESIDE];
    max_of_rows(rows, out, x, N, &s, max);
    for (int i = 0; i < count; i += rows, out += rows * N, x += rows * N) {
        row_shape next = s;
        float sum[BESIDE];
        exp_rows(rows, out, x, N, &s, max, sum);
        if (i + rows < count) {
            next = shape_of_rows(rows, N, i + rows, n, mask);
            max_of_rows(rows, out + rows * N, x + rows * N, N, &next, max);
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            divide_row(out + r * N, &s, sum[r]);
            zero_rest(out + r * N, s.n, N);
        }
        s = next;
    }
}

/* Have the next BESIDE rows one length? */
V_FN bool
are_alike(const int64_t *n, int rows)
{
    int i = 1;
    for (; i < BESIDE && i < rows && n[i] == n[0]; i++) {
    }
    return i == BESIDE;
}

static void
softmax_rows(float *out, const float *x, int64_t N, int rows, const int64_t *n,
             const uint8_t *const *mask)
{
    const bool may = mask == NULL && N <= LONG;
    short_rows together;
    int i = 0;
    for (; i + VLEN <= rows && find_short(&together, n + i, mask ? mask + i : NULL);
         i += VLEN) {
        softmax_short(out + i * N, x + i * N, N, n + i, &together);
    }
    for (int end = i; i < rows; i = end) {
        const bool beside = may && are_alike(n + i, rows - i);
        while (end < rows && beside == (may && are_alike(n + end, rows - end))) {
            end += beside ? BESIDE : 1;
        }
        if (beside) {
            softmax_long(BESIDE, out + i * N, x + i * N, N, end - i, n + i, NULL);
        } else {
            softmax_long(1, out + i * N, x + i * N, N, end - i, n + i,
                         mask ? mask + i : NULL);
        }
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
