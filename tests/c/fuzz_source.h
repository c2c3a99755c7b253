/*
 * fuzz_source.h -- the bytes of one fuzz input turned into choices, numbers and buffers.
 *
 * The first four bytes are the seed of all random numbers; the others make the choices,
 * and where they end, the random numbers do. Every array is a heap buffer of exactly its
 * size, so that the sanitizer sees any step outside, and is filled with NaN before
 * anything else.
 */
#ifndef FUZZ_SOURCE_H
#define FUZZ_SOURCE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- bytes in -------------------------------------------------------------------- */

typedef struct {
    const uint8_t *at;
    size_t left;
    uint64_t random;
    bool nasty; /* infinities and NaN among the numbers */
    float magnitude;
} source;

static uint32_t
next_random(source *s) /* xorshift64* */
{
    s->random ^= s->random >> 12;
    s->random ^= s->random << 25;
    s->random ^= s->random >> 27;
    return (uint32_t)((s->random * UINT64_C(0x2545F4914F6CDD1D)) >> 32);
}

static unsigned
next_byte(source *s)
{
    if (s->left == 0) {
        return next_random(s) & 255;
    }
    s->left--;
    return *s->at++;
}

static source
open_source(const uint8_t *data, size_t length)
{
    static const float magnitudes[] = {1.0f, 0.05f, 4.0f, 20.0f};
    source s = {.at = data, .left = length, .random = UINT64_C(1) << 40};
    for (int i = 0; i < 4 && s.left > 0; i++) {
        s.random |= (uint64_t)next_byte(&s) << 8 * i;
    }
    s.magnitude = magnitudes[next_byte(&s) % 4];
    s.nasty = next_byte(&s) % 8 == 7;
    return s;
}

/* 0 .. most: mostly small, else at the edge of a vector, block or tile. */
static int64_t
size(source *s, int64_t most)
{
    static const int edges[] = {15, 16,  17,  31,  32,  33,  63, 64,
                                65, 127, 128, 129, 255, 256, 257};
    unsigned byte = next_byte(s);
    int64_t n = byte < 160 ? (int)(byte % 12) : edges[byte % 15];
    return n < most ? n : most;
}

/* ---- buffers out ----------------------------------------------------------------- */

/* Everything allocated for one input, to be freed after it. */
static void *owned[2048];
static int owned_count;

static void *
allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    if ((memory == NULL && bytes > 0) ||
        owned_count == (int)(sizeof owned / sizeof *owned)) {
        abort();
    }
    owned[owned_count++] = memory;
    return memory;
}

static void
free_all(void)
{
    while (owned_count > 0) {
        free(owned[--owned_count]);
    }
}

static void *
nan_bytes(size_t bytes)
{
    return memset(allocate(bytes), 0xff, bytes);
}

/* Return a workspace full of signalling NaN: arithmetic on a value that was not written
 * raises FE_INVALID. */
static void *
workspace(size_t bytes)
{
    const uint32_t signalling = 0x7fa00000;
    uint8_t *memory = allocate(bytes);
    for (size_t i = 0; i < bytes; i++) {
        memory[i] = (uint8_t)(signalling >> 8 * (i % sizeof signalling));
    }
    return memory;
}

static float *
nan_floats(int64_t n)
{
    return nan_bytes((size_t)n * sizeof(float));
}

static float *
copy_floats(const float *x, int64_t n)
{
    return memcpy(nan_floats(n), x, (size_t)n * sizeof(float));
}

static float *
random_floats(source *s, int64_t n)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN,   0.0f,
                                -0.0f,    1e-42f,    3e38f, -3e38f};
    float *x = nan_floats(n);
    for (int64_t i = 0; i < n; i++) {
        uint32_t r = next_random(s);
        x[i] = s->magnitude * ((float)(r >> 8) * 0x1p-23f - 1.0f);
        if (s->nasty && r % 64 == 0) {
            x[i] = odd[r / 64 % 8];
        }
    }
    return x;
}

/* n bytes, 0 or not, in runs of about 1, 4, 16 or 64; few, half or most of them 0. */
static uint8_t *
random_flags(source *s, int64_t n)
{
    static const unsigned char set_of_8[] = {7, 4, 1, 7};
    unsigned kind = next_byte(s), run = 1u << 2 * (kind % 4);
    uint8_t *flags = nan_bytes((size_t)n);
    for (int64_t i = 0; i < n; i++) {
        uint32_t r = next_random(s);
        flags[i] = i > 0 && r % run != 0                 ? flags[i - 1]
                   : r / 64 % 8 < set_of_8[kind / 4 % 4] ? 1 + r / 512 % 255
                                                         : 0;
    }
    return flags;
}

#endif
