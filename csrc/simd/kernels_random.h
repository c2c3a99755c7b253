/*
 * kernels_random.h -- Philox4x32-10 (Salmon et al. 2011), sixteen counters side by
 * side.
 *
 * Plain loops over sixteen, which compilers turn into vectors: multiplications of 32 by
 * 32 bits are not among the words of the vocabulary, and are needed nowhere else.
 */

enum { STREAMS = 16 };

/* One round of all counters; k0, k1 is the round's key. */
V_FN void
philox_round(uint32_t c[4][STREAMS], uint32_t k0, uint32_t k1)
{
    for (int i = 0; i < STREAMS; i++) {
        uint64_t even = (uint64_t)0xD2511F53u * c[0][i];
        uint64_t odd = (uint64_t)0xCD9E8D57u * c[2][i];
        c[0][i] = (uint32_t)(odd >> 32) ^ c[1][i] ^ k0;
        c[1][i] = (uint32_t)odd;
        c[2][i] = (uint32_t)(even >> 32) ^ c[3][i] ^ k1;
        c[3][i] = (uint32_t)even;
    }
}

static void
philox(uint32_t *words, int64_t n, uint64_t counter, uint64_t stream, uint64_t key)
{
    for (int64_t i = 0; i < n; i += STREAMS) {
        uint32_t c[4][STREAMS], k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
        for (int s = 0; s < STREAMS; s++) {
            uint64_t at = counter + (uint64_t)(i + s);
            c[0][s] = (uint32_t)at;
            c[1][s] = (uint32_t)(at >> 32);
            c[2][s] = (uint32_t)stream;
            c[3][s] = (uint32_t)(stream >> 32);
        }
        for (int round = 0; round < 10; round++) {
            philox_round(c, k0, k1);
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        for (int s = 0; s < STREAMS && i + s < n; s++) {
            for (int w = 0; w < 4; w++) {
                words[4 * (i + s) + w] = c[w][s];
            }
        }
    }
}
