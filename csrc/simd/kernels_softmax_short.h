/*
 * kernels_softmax_short.h -- softmax of short rows in memory: lanes are rows.
 *
 * With keys as lanes the trees would cost more than the row. Each of the 16 canonical lanes
 * is a register of its own here, which gives the same bits. Measured with AVX-512, ns for a
 * row in a cache, one way and the other: 17 and 8 for n = 5, 28 and 15 for n = 17, 45 and 32
 * for n = 50, 33 and 36 for n = 64.
 */
#include <string.h>

/* a / total, given factor = 1 / total: the product and one correction of it round as
 * the division does, unless the quotient is subnormal (Markstein 1990), in a third of
 * the time. */
V_FN vf
quotient(vf a, vf total, vf factor)
{
    vf q = v_mul(a, factor);
    return v_fma(v_fnma(q, total, a), factor, q);
}

enum { SHORT = 63 }; /* most elements of a short row */

/* VLEN rows side by side. */
typedef struct {
    float column[(SHORT + 1) * VLEN]; /* [element][row] */
    uint64_t live[VLEN];              /* of each row */
    bool alike;                       /* all of live is live[0] */
    int64_t longest;
} short_rows;

V_FN int64_t
round_up(int64_t n, int64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

V_FN vm
live_of_short(const short_rows *s, bool alike, int i, int64_t c)
{
    return m_from_bits(s->live[alike ? 0 : i] >> c);
}

/* Copy the rows into columns; return the largest element of each row. A dead element becomes
 * -inf; in a row without a live one 0, because -inf less the maximum -inf is invalid. */
V_FN vf
load_short(short_rows *s, const float *x, int64_t N, const int64_t *n, bool alike)
{
    vf top = v_set1(-INFINITY);
    for (int64_t c = 0; c < s->longest; c += VLEN) {
        vf v[VLEN];
        UNROLL
        for (int i = 0; i < VLEN; i++) {
            vf row = v_load_n(x + i * N + c, lanes_left(n[alike ? 0 : i] - c));
            vf dead = v_set1(s->live[alike ? 0 : i] == 0 ? 0.0f : -INFINITY);
            v[i] = v_select(live_of_short(s, alike, i, c), row, dead);
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
    /* Columns of whole vectors whose exponentials were not taken: store_short reads them. */
    for (int64_t c = round_up(s->longest, TOGETHER); c < round_up(s->longest, VLEN);
         c++) {
        v_store(s->column + c * VLEN, v_zero());
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
    if (s->longest == 0) {
        memset(out, 0, (size_t)(VLEN * N) * sizeof *out);
        return;
    }
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
