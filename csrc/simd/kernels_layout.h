/*
 * kernels_layout.h -- rows of user memory to lanes and back: transposes of VLEN x VLEN
 * squares.
 */

static void
pack(float *dst, int lanes, const float *src, int64_t lds, int rows, int64_t cols,
     float gain)
{
    if (lanes == 1) {
        scale_row(dst, src, cols, gain, false);
        return;
    }
    for (int l = 0; l < lanes; l += VLEN) {
        int here = lanes_left(rows - l);
        for (int64_t c = 0; c < cols; c += VLEN) {
            vf v[VLEN];
            int n = lanes_left(cols - c);
            for (int i = 0; i < VLEN; i++) {
                v[i] = i < here ? v_load_n(src + (l + i) * lds + c, n) : v_zero();
            }
            v_transpose(v);
            for (int i = 0; i < n; i++) {
                v_store(dst + (c + i) * lanes + l, v_mul(v[i], v_set1(gain)));
            }
        }
    }
}

static void
unpack(float *dst, int64_t ldd, const float *src, int lanes, int rows, int64_t cols,
       const float *factor)
{
    if (lanes == 1) {
        scale_row(dst, src, cols, factor == NULL ? 1.0f : *factor, true);
        return;
    }
    for (int l = 0; l < rows; l += VLEN) {
        vf f = factor != NULL ? v_load(factor + l) : v_set1(1.0f);
        int here = lanes_left(rows - l);
        for (int64_t c = 0; c < cols; c += VLEN) {
            vf v[VLEN];
            int n = lanes_left(cols - c);
            for (int i = 0; i < VLEN; i++) {
                vf x = i < n ? v_mul(v_load(src + (c + i) * lanes + l), f) : v_zero();
                v[i] = v_add(x, v_zero());
            }
            v_transpose(v);
            for (int i = 0; i < here; i++) {
                v_store_n(dst + (l + i) * ldd + c, v[i], n);
            }
        }
    }
}
