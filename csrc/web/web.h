/*
 * web.h -- the door to a page: attention as WebAssembly exports it. attnext.js is its
 * other half, and has the names and defaults of Python's functions.
 *
 * A page writes one struct, whose fields all have four bytes there, and the arrays that
 * it points to, into the module's memory; nothing here allocates or fails. What is asked
 * of the arrays is what attn.h asks.
 */
#ifndef ATTN_WEB_H
#define ATTN_WEB_H

#include "../core/attn.h"

enum { WEB_PARAMETERS = 4 };

typedef struct {
    int32_t score; /* its place in ATTN_SCORES */
    int32_t B, M, N, Dq, Dk, Dv, H;
    float scale; /* attn_problem.scale */
    float eps, softcap;
    int32_t empty_rows;                               /* attn_empty_rows */
    int32_t lens_per_query;                           /* lens: 1 (B, M), 0 (B) */
    int32_t has_left, left, has_right, right, offset; /* attn_band */
    float dropout_p;
    uint32_t seed_low, seed_high;

    const float *queries, *keys, *values; /* (B, M, Dq), (B, N, Dk), (B, N, Dv) */
    const float *parameters[WEB_PARAMETERS];
    const int32_t *lens; /* NULL: every key */
    const uint8_t *mask; /* (B, M, N), 0 forbids; NULL: nothing is forbidden */

    float *scores;  /* (B, M, N), as attn_scores; NULL: not wanted */
    float *output;  /* (B, M, Dv) */
    float *weights; /* (B, M, N) or NULL */
    float *lse;     /* (B, M) or NULL */
    int64_t *room;  /* for lens: as many numbers */
} web_call;

/* Return the bytes of scratch that web_attention needs for this call; SIZE_MAX if the sizes
 * overflow: such a call must not be made. */
size_t web_workspace(const web_call *call);
void web_attention(const web_call *call, void *workspace);

/* weights = softmax of scores, over the keys that lens and mask allow. */
void web_masked_softmax(const web_call *call);

#endif
