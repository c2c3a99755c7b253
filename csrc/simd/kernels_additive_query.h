/*
 * kernels_additive_query.h -- the additive score of one query, forward (kernels_query.h):
 * lanes are keys, whose hidden units are transposed in registers.
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
             const float *w, float bias, int keys, int64_t H, const uint64_t *live)
{
    for (int i = 0; i < keys; i += VLEN) {
        vf acc = v_set1(bias), b[SQUARE], a[UNITS], w_h[UNITS];
        int rows = lanes_left(keys - i);
        for (int64_t h = 0; h < H; h += SQUARE) {
            int n = H - h < SQUARE ? (int)(H - h) : SQUARE;
            load_units(b, B + i * H + h, H, rows, n);
            for (int f = 0; f < n; f += UNITS) {
                UNROLL
                for (int u = 0; u < UNITS; u++) {
                    a[u] = v_set1(A[h + f + u]);
                    w_h[u] = v_set1(w[h + f + u]);
                }
                acc = additive_terms(regime, acc, a, b + f, w_h);
            }
        }
        uint64_t bits = query_bits(live, i, i + rows);
        v_store_n(S + i, v_select(m_from_bits(bits), acc, v_load_n(S + i, rows)), rows);
    }
}

static void
additive_query(float *S, const float *A, const float *B, const float *w, float bias,
               int keys, int64_t H, additive_regime regime, const uint64_t *live)
{
    switch (regime) {
    case ADDITIVE_SMALL:
        scores_query(ADDITIVE_SMALL, S, A, B, w, bias, keys, H, live);
        break;
    case ADDITIVE_EXP:
        scores_query(ADDITIVE_EXP, S, A, B, w, bias, keys, H, live);
        break;
    case ADDITIVE_CLAMPED:
        scores_query(ADDITIVE_CLAMPED, S, A, B, w, bias, keys, H, live);
        break;
    case ADDITIVE_DIRECT:
        scores_query(ADDITIVE_DIRECT, S, A, B, w, bias, keys, H, live);
        break;
    }
}

/* A += bias; the largest |A|. */
static float
add_bias_query(float *A, const float *bias, int64_t H)
{
    if (bias != NULL) {
        for (int64_t h = 0; h < H; h += VLEN) {
            int n = lanes_left(H - h);
            v_store_n(A + h, v_add(v_load_n(A + h, n), v_load_n(bias + h, n)), n);
        }
    }
    return absmax_row(A, H);
}
