/*
 * kernels_difference.h -- the gradients of a distance, for queries and for keys.
 *
 * The gradients of |q - k|^2 take differences first, as the score did: subtracting sums
 * of large coordinates afterwards would cancel.
 */

static void
difference_lanes(float *dQ, const float *G, const float *X, int64_t ldx, const float *Q,
                 int lanes, int rows, int64_t D, const uint64_t *live)
{
    if (lanes == 1) {
        difference_query(dQ, G, X, ldx, Q, rows, D, live);
        return;
    }
    for (int64_t d = 0; d < D; d++) {
        for (int l = 0; l < lanes; l += VLEN) {
            vf q = v_load(Q + d * lanes + l), c = v_zero();
            for (int i = 0; i < rows; i++) {
                vf diff = v_sub(v_set1(X[i * ldx + d]), q);
                vm m = m_from_bits(live == NULL ? ~(uint64_t)0 : live[i] >> l);
                c = v_fma_if(m, v_load(G + i * lanes + l), diff, c);
            }
            float *to = dQ + d * lanes + l;
            v_store(to, v_add(v_load(to), c));
        }
    }
}

static void
difference_rows(float *dX, const float *G, int lanes, const float *Y, int64_t ldy,
                const float *X, int64_t ldx, int rows, int K, int64_t D, float factor,
                const uint64_t *live)
{
    const uint64_t within = K < 64 ? ((uint64_t)1 << K) - 1 : ~(uint64_t)0;
    for (int i = 0; i < rows; i++) {
        for (int64_t d = 0; d < D; d += VLEN) {
            int n = lanes_left(D - d);
            vf x = v_load_n(X + i * ldx + d, n), c = v_zero();
            for (uint64_t w = live == NULL ? within : live[i] & within; w != 0;
                 w &= w - 1) {
                int t = __builtin_ctzll(w);
                vf diff = v_sub(v_load_n(Y + t * ldy + d, n), x);
                c = v_fma(v_set1(G[i * lanes + t]), diff, c);
            }
            float *to = dX + i * D + d;
            v_store_n(to, v_fma(v_set1(factor), c, v_load_n(to, n)), n);
        }
    }
}
