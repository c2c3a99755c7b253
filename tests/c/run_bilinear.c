/*
 * run_bilinear.c -- one problem with the bilinear score of
 * docs/adding_a_scoring_function.md, computed through attn.h.
 *
 *     run_bilinear INSTRUCTION_SET THREADS [dot] < problem > results
 *
 * problem   int64   B group M N Dq Dk Dv, empty_rows, are there lens, is there a mask
 *           float   W (Dk, Dq), queries, keys, values, the gradients of output, weights
 *                   and lse
 *           int64   lens (B, M), if there are any
 *           bytes   mask (B, M, N), if there is one
 * results   float   scores, output, weights, lse, dq, dk, dv, dW
 *
 * dot: with the dot-product score, scale 1, in its place; dW is then NaN. Results and
 * workspace start as NaN, so that what is not written, or read before it is, shows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../csrc/core/attn.h"
#include "../../csrc/simd/dispatch.h"

static void
give_up(const char *message)
{
    fprintf(stderr, "%s\n", message);
    exit(1);
}

static void *
nan_bytes(size_t size)
{
    void *memory = size == SIZE_MAX ? NULL : malloc(size + 1);
    if (memory == NULL) {
        give_up("out of memory");
    }
    return memset(memory, 0xff, size + 1);
}

static void *
read_items(size_t size, int64_t n)
{
    void *items = nan_bytes(size * (size_t)n);
    if (fread(items, size, (size_t)n, stdin) != (size_t)n) {
        give_up("the problem is too short");
    }
    return items;
}

static float *
read_floats(int64_t n)
{
    return read_items(sizeof(float), n);
}

/* ---- the problem ----------------------------------------------------------------- */

typedef struct {
    attn_problem p;
    attn_axis axis; /* of the mask */
    attn_inputs in;
    attn_grad_outputs grad;
} problem;

static void
read_problem(problem *c)
{
    const int64_t *head = read_items(sizeof *head, 10);
    attn_problem *p = &c->p;
    *p = (attn_problem){
        .B = head[0],
        .group = head[1],
        .M = head[2],
        .N = head[3],
        .Dq = head[4],
        .Dk = head[5],
        .Dv = head[6],
        .score = &attn_score_bilinear,
        .empty_rows = (attn_empty_rows)head[7],
    };
    int64_t entries = p->B / p->group, rows = p->B * p->M;
    p->parameters[0] = read_floats(p->Dk * p->Dq);
    c->in.queries = attn_dense(read_floats(rows * p->Dq), p->M, p->Dq);
    c->in.keys = attn_dense(read_floats(entries * p->N * p->Dk), p->N, p->Dk);
    c->in.values = attn_dense(read_floats(entries * p->N * p->Dv), p->N, p->Dv);
    c->grad.output = read_floats(rows * p->Dv);
    c->grad.weights = read_floats(rows * p->N);
    c->grad.lse = read_floats(rows);
    if (head[8] != 0) {
        const int64_t *lens = read_items(sizeof *lens, rows);
        p->masks.valid = (attn_valid_lens){lens, 1, p->M, 1};
    }
    if (head[9] != 0) {
        const uint8_t *mask = read_items(1, rows * p->N);
        c->axis = (attn_axis){p->B, p->M * p->N};
        p->masks.mask = (attn_view){mask, &c->axis, 1, p->N, 1};
    }
    if (getchar() != EOF) {
        give_up("the problem is too long");
    }
}

/* ---- its results ----------------------------------------------------------------- */

typedef struct {
    float *numbers;
    size_t n;
} array;

static array
nan_floats(int64_t n)
{
    size_t size = (size_t)n;
    return (array){nan_bytes(size * sizeof(float)), size};
}

static void
write_floats(array a)
{
    if (fwrite(a.numbers, sizeof(float), a.n, stdout) != a.n) {
        give_up("the results cannot be written");
    }
}

/* Masks play no part in the scores. */
static void
write_scores(const problem *c, int threads)
{
    attn_problem p = c->p;
    p.masks = (attn_masks){0};
    array scores = nan_floats(p.B * p.M * p.N);
    attn_run run = {.threads = threads};
    void *work = nan_bytes(attn_scores_workspace(&p, threads));
    attn_scores(scores.numbers, &c->in, &p, work, &run);
    write_floats(scores);
}

static void
write_forward(const problem *c, int threads)
{
    const attn_problem *p = &c->p;
    array output = nan_floats(p->B * p->M * p->Dv);
    array weights = nan_floats(p->B * p->M * p->N);
    array lse = nan_floats(p->B * p->M);
    attn_run run = {.threads = threads};
    void *work = nan_bytes(attn_forward_workspace(p, true, threads));
    attn_forward(output.numbers, weights.numbers, lse.numbers, &c->in, p, work, &run);
    write_floats(output);
    write_floats(weights);
    write_floats(lse);
}

static void
write_backward(const problem *c, int threads)
{
    const attn_problem *p = &c->p;
    int64_t entries = p->B / p->group;
    array dq = nan_floats(p->B * p->M * p->Dq), dk = nan_floats(entries * p->N * p->Dk);
    array dv = nan_floats(entries * p->N * p->Dv), dW = nan_floats(p->Dk * p->Dq);
    const attn_gradients d = {
        .queries = dq.numbers,
        .keys = dk.numbers,
        .values = dv.numbers,
        .parameters = {dW.numbers},
    };
    const attn_saved saved = {NULL, NULL, NULL};
    attn_run run = {.threads = threads};
    void *work = nan_bytes(attn_backward_workspace(p, &d, &c->grad, threads));
    attn_backward(&d, &c->grad, &saved, &c->in, p, work, &run);
    write_floats(dq);
    write_floats(dk);
    write_floats(dv);
    write_floats(dW);
}

int
main(int argc, char **argv)
{
    problem c = {.p = {.B = 0}};
    const char *message = argc < 3 ? "run_bilinear INSTRUCTION_SET THREADS [dot]"
                                   : attn_cpu_select(argv[1]);
    if (message != NULL) {
        give_up(message);
    }
    int threads = atoi(argv[2]);
    read_problem(&c);
    if (argc > 3 && strcmp(argv[3], "dot") == 0) {
        c.p.score = &attn_score_dot;
        c.p.scale = 1.0f;
    }
    write_scores(&c, threads);
    write_forward(&c, threads);
    write_backward(&c, threads);
    return 0;
}
