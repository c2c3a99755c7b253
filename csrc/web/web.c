/*
 * web.c -- from the struct that a page writes to the core's problem, and the call.
 */
#include "web.h"

static const attn_score *const scores[] = {
#define WEB_SCORE(name) &attn_score_##name,
    ATTN_SCORES(WEB_SCORE)};

/* ---- who takes part -------------------------------------------------------------- */

/* What the views and lengths of a call point to, beside its own arrays. */
typedef struct {
    attn_axis entries;
    int64_t offset;
} web_rows;

static attn_masks
masks_of(const web_call *c, web_rows *rows)
{
    attn_masks masks = {.valid.heads = 1};
    if (c->lens != NULL) {
        int64_t count = (int64_t)c->B * (c->lens_per_query ? c->M : 1);
        for (int64_t i = 0; i < count; i++) {
            c->room[i] = c->lens[i];
        }
        masks.valid.lens = c->room;
        masks.valid.stride_b = c->lens_per_query ? c->M : 1;
        masks.valid.stride_m = c->lens_per_query;
    }
    if (c->mask != NULL) {
        rows->entries = (attn_axis){c->B, (int64_t)c->M * c->N};
        masks.mask = (attn_view){.data = c->mask,
                                 .axes = &rows->entries,
                                 .axis_count = 1,
                                 .stride_m = c->N,
                                 .stride_j = 1};
    }
    rows->offset = c->offset;
    masks.band = (attn_band){.has_left = c->has_left,
                             .has_right = c->has_right,
                             .left = c->left,
                             .right = c->right,
                             .offset = &rows->offset,
                             .heads = INT64_MAX};
    return masks;
}

void
web_masked_softmax(const web_call *c)
{
    web_rows rows;
    attn_masks masks = masks_of(c, &rows);
    attn_run run = {.threads = 1};
    attn_masked_softmax(c->weights, c->scores, c->B, c->M, c->N, &masks,
                        (attn_empty_rows)c->empty_rows, &run);
}

/* ---- attention ------------------------------------------------------------------- */

static attn_problem
problem_of(const web_call *c, web_rows *rows)
{
    attn_problem p = {
        .B = c->B,
        .M = c->M,
        .N = c->N,
        .Dq = c->Dq,
        .Dk = c->Dk,
        .Dv = c->Dv,
        .H = c->H,
        .group = 1,
        .score = scores[c->score],
        .scale = c->scale,
        .eps = c->eps,
        .softcap = c->softcap,
        .masks = masks_of(c, rows),
        .empty_rows = (attn_empty_rows)c->empty_rows,
        .dropout = {.p = c->dropout_p,
                    .seed = (uint64_t)c->seed_high << 32 | c->seed_low},
    };
    for (int i = 0; i < WEB_PARAMETERS; i++) {
        p.parameters[i] = c->parameters[i];
    }
    return p;
}

size_t
web_workspace(const web_call *c)
{
    web_rows rows;
    attn_problem p = problem_of(c, &rows);
    size_t forward = attn_forward_workspace(&p, c->weights != NULL, 1);
    size_t scores_alone = attn_scores_workspace(&p, 1);
    return forward > scores_alone ? forward : scores_alone;
}

void
web_attention(const web_call *c, void *workspace)
{
    web_rows rows;
    attn_problem p = problem_of(c, &rows);
    attn_inputs in = {attn_dense(c->queries, p.M, p.Dq), attn_dense(c->keys, p.N, p.Dk),
                      attn_dense(c->values, p.N, p.Dv)};
    attn_run run = {.threads = 1};
    if (c->scores != NULL) {
        attn_problem every_pair = p;
        every_pair.masks = (attn_masks){.valid.heads = 1};
        attn_scores(c->scores, &in, &every_pair, workspace, &run);
    }
    attn_forward(c->output, c->weights, c->lse, &in, &p, workspace, &run);
}
