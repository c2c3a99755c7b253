/*
 * fuzz_problem.h -- the bytes of one fuzz input turned into an attention problem.
 *
 * The first four bytes are the seed of all random numbers; the others choose sizes and
 * options, and where they end, the random numbers do. Every array is a heap buffer of
 * exactly its size, so that the sanitizer sees any step outside, and is filled with NaN
 * before anything else. What takes no part in the problem stays, or becomes, NaN.
 */
#ifndef FUZZ_PROBLEM_H
#define FUZZ_PROBLEM_H

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../../csrc/core/attn.h"

/* ---- bytes in, buffers out ------------------------------------------------------- */

typedef struct {
    const uint8_t *at;
    size_t left;
    uint64_t random;
    bool nasty;
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

/* Everything allocated for one input, to be freed after it. */
static void *owned[512];
static int owned_count;

static void *
allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    if (memory == NULL || owned_count == (int)(sizeof owned / sizeof *owned)) {
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

static float *
nan_floats(int64_t n)
{
    return nan_bytes((size_t)n * sizeof(float));
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

/* ---- a problem ------------------------------------------------------------------- */

typedef struct {
    attn_problem p;
    float *queries, *keys, *values;
    float *dout, *dweights, *dlse; /* the last two may be NULL */
    bool use_saved;                /* the backward gets the forward's output and lse */
    float *X, *dsoftmax; /* masked softmax: its input and gradient, (B, M, N) */
    int threads;
    bool tame; /* no infinity or NaN where it matters */
} problem;

static int64_t
limit_of(const attn_problem *p, int64_t b, int64_t m)
{
    const attn_valid_lens *v = &p->valid;
    return v->lens == NULL ? p->N
                           : v->lens[b / v->heads * v->stride_b + m * v->stride_m];
}

/* Valid lengths: none, one of each first-axis entry, or one of each query. */
static void
choose_lens(source *s, attn_problem *p)
{
    unsigned kind = next_byte(s) % 4;
    p->valid = (attn_valid_lens){.heads = kind == 3 && p->B % 2 == 0 ? 2 : 1};
    if (kind == 0) {
        return;
    }
    p->valid.stride_m = kind > 1;
    p->valid.stride_b = kind > 1 ? p->M : 1;
    int64_t n = p->B / p->valid.heads * p->valid.stride_b;
    int64_t *lens = allocate((size_t)n * sizeof *lens);
    for (int64_t i = 0; i < n; i++) {
        uint32_t r = next_random(s);
        lens[i] = r % 8 == 0 ? 0 : (int64_t)(r / 8) % (p->N + 1);
    }
    p->valid.lens = lens;
}

/* Writes NaN over what takes no part: keys and values behind every length, queries and
 * gradients of empty rows, gradients of masked weights, masked scores. */
static void
poison(problem *c)
{
    const attn_problem *p = &c->p;
    const bool uniform = p->empty_rows == ATTN_EMPTY_UNIFORM;

    for (int64_t b = 0; b < p->B; b++) {
        int64_t scored = 0, pooled = 0;
        for (int64_t m = 0; m < p->M; m++) {
            int64_t row = b * p->M + m, limit = limit_of(p, b, m);
            scored = limit > scored ? limit : scored;
            pooled = limit == 0 && uniform ? p->N : limit > pooled ? limit : pooled;
            for (int64_t j = limit; j < p->N; j++) {
                c->X[row * p->N + j] = c->dsoftmax[row * p->N + j] = NAN;
                if (c->dweights != NULL) {
                    c->dweights[row * p->N + j] = NAN;
                }
            }
            for (int64_t d = 0; limit == 0 && d < p->Dq; d++) {
                c->queries[row * p->Dq + d] = NAN;
            }
            for (int64_t d = 0; limit == 0 && !uniform && d < p->Dv; d++) {
                c->dout[row * p->Dv + d] = NAN;
            }
            if (limit == 0 && c->dlse != NULL) {
                c->dlse[row] = NAN;
            }
        }
        for (int64_t i = (b * p->N + scored) * p->Dk; i < (b + 1) * p->N * p->Dk; i++) {
            c->keys[i] = NAN;
        }
        for (int64_t i = (b * p->N + pooled) * p->Dv; i < (b + 1) * p->N * p->Dv; i++) {
            c->values[i] = NAN;
        }
    }
}

static void
choose_sizes(source *s, attn_problem *p)
{
    p->score = (attn_score_kind)(next_byte(s) % 3);
    p->B = next_byte(s) % 4;
    p->M = size(s, 70);
    p->N = size(s, 260);
    p->Dq = size(s, 40);
    p->Dk = p->score == ATTN_ADDITIVE ? size(s, 20) : p->Dq;
    p->Dv = size(s, 40);
    p->H = p->score == ATTN_ADDITIVE ? size(s, 33) : 0;
    /* smaller until it is fast enough to try many */
    while (p->B * p->M * p->N * (p->Dq + p->Dv + 4 * p->H) > 500000) {
        p->M -= p->M / 3;
        p->N -= p->N / 8;
        p->B = p->B > 2 ? 2 : p->B;
        p->H -= p->H / 4;
        p->Dv -= p->Dv / 4;
    }
}

static problem
choose_problem(source *s)
{
    problem c = {.threads = 1 + (int)(next_byte(s) % 3), .tame = !s->nasty};
    attn_problem *p = &c.p;

    choose_sizes(s, p);
    p->scale = (float)next_byte(s) / 64.0f - 1.0f;
    p->empty_rows = (attn_empty_rows)(next_byte(s) % 3);
    choose_lens(s, p);
    unsigned options = next_byte(s);
    p->dropout_p = options & 1 ? (float)next_byte(s) / 256.0f : 0.0f;
    p->seed = next_random(s);
    c.use_saved = options & 2;
    if (p->score == ATTN_ADDITIVE) {
        p->W_q = random_floats(s, p->H * p->Dq);
        p->W_k = random_floats(s, p->H * p->Dk);
        p->w_v = random_floats(s, p->H);
        p->b_h = options & 4 ? random_floats(s, p->H) : NULL;
    }
    c.queries = random_floats(s, p->B * p->M * p->Dq);
    c.keys = random_floats(s, p->B * p->N * p->Dk);
    c.values = random_floats(s, p->B * p->N * p->Dv);
    c.X = random_floats(s, p->B * p->M * p->N);
    c.dsoftmax = random_floats(s, p->B * p->M * p->N);
    c.dout = random_floats(s, p->B * p->M * p->Dv);
    c.dweights = options & 8 ? random_floats(s, p->B * p->M * p->N) : NULL;
    c.dlse = options & 16 ? random_floats(s, p->B * p->M) : NULL;
    poison(&c);
    return c;
}

#endif
