/* What one core can do at most: fused multiply-adds, divisions, and reading memory.

   Compiled by suite/limits.py into a shared library, with LANES floats to a vector and the flags
   of the instruction set that attnext uses; -ffp-contract=fast makes a fused multiply-add of
   x * a + b where the CPU has one. Each function returns how many floats it has worked on: the
   caller takes the time. */

#ifndef LANES
#define LANES 4
#endif

enum {
    /* Two ports times four cycles of latency need 8 chains; registers hold this many. */
    CHAINS = LANES == 16 ? 24 : 12
};

typedef float vec __attribute__((vector_size(4 * LANES)));

/* Results end here, so that the compiler has to compute them. */
volatile float attnext_peak_sink;

static void
use(const vec *c)
{
    vec sum = c[0];
    for (int i = 1; i < CHAINS; i++) {
        sum += c[i];
    }
    attnext_peak_sink = sum[0];
}

static void
start(vec *c)
{
    for (int i = 0; i < CHAINS; i++) {
        c[i] = (vec){0} + (1.0f + 0.01f * (float)i);
    }
}

/* Multiply-adds in independent chains; x = .999 x + .001 stays near 1. */
long
peak_fma(long rounds)
{
    vec c[CHAINS];
    const vec a = (vec){0} + 0.999f, b = (vec){0} + 0.001f;
    start(c);
    for (long r = 0; r < rounds; r++) {
        _Pragma("GCC unroll 24")
        for (int i = 0; i < CHAINS; i++) {
            c[i] = c[i] * a + b;
        }
    }
    use(c);
    return rounds * CHAINS * LANES;
}

/* Divisions likewise; x = 1.5 / x goes back and forth. */
long
peak_division(long rounds)
{
    vec c[CHAINS];
    const vec a = (vec){0} + 1.5f;
    start(c);
    for (long r = 0; r < rounds; r++) {
        _Pragma("GCC unroll 24")
        for (int i = 0; i < CHAINS; i++) {
            c[i] = a / c[i];
        }
    }
    use(c);
    return rounds * CHAINS * LANES;
}

/* Every float of x (n), n a multiple of 8 * LANES, x aligned to a vector. */
long
peak_read(const float *x, long n)
{
    vec c[8] = {{0}};
    for (long i = 0; i + 8 * LANES <= n; i += 8 * LANES) {
        _Pragma("GCC unroll 8")
        for (int j = 0; j < 8; j++) {
            c[j] += *(const vec *)(x + i + j * LANES);
        }
    }
    for (int j = 1; j < 8; j++) {
        c[0] += c[j];
    }
    attnext_peak_sink = c[0][0];
    return n;
}
