/*
 * test_core.c -- what attn.h promises of memory and time, and what only large problems
 * show. Bits and values of all else: fuzz_attention.c.
 *
 *     test_core CHECK      one of those below; 0 if it holds
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../csrc/core/attn.h"
#include "../../csrc/simd/dispatch.h"

static const double MIB = 1048576.0;

static void
check(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

static void *
allocate(size_t size)
{
    void *memory = size == SIZE_MAX ? NULL : malloc(size + 1);
    check(memory != NULL, "out of memory");
    return memory;
}

static float *
numbers(int64_t n)
{
    static uint32_t state = 1;
    float *x = allocate((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)state * 0x1p-31f;
    }
    return x;
}

/* Dot product, dense inputs, nothing masked. */
static attn_problem
dot_problem(int64_t B, int64_t M, int64_t N, int64_t D, int64_t group)
{
    return (attn_problem){.B = B,
                          .M = M,
                          .N = N,
                          .Dq = D,
                          .Dk = D,
                          .Dv = D,
                          .group = group,
                          .score = &attn_score_dot,
                          .scale = 1.0f};
}

/* One head of multi-head attention, one key of one feature. */
static attn_problem
heads_problem(int64_t M, int64_t D, int64_t H)
{
    return (attn_problem){
        .B = 1,
        .M = M,
        .N = 1,
        .Dq = D,
        .Dk = 1,
        .Dv = 1,
        .H = H,
        .group = 1,
        .heads = 1,
        .score = &attn_score_dot,
        .scale = 1.0f,
        .parameters = {numbers(H * D), numbers(H), numbers(H), numbers(H * H)}};
}

static void
backward(const attn_gradients *d, const float *grad, const attn_inputs *in,
         const attn_problem *p, int threads)
{
    const attn_grad_outputs grads = {.output = grad};
    const attn_saved saved = {NULL, NULL, NULL};
    attn_run run = {.threads = threads};
    void *work = allocate(attn_backward_workspace(p, d, &grads, threads));
    check(attn_backward(d, &grads, &saved, in, p, work, &run) == 0, "interrupted");
    free(work);
}

/* ---- 32 query heads on one key head: memory, and the order of sums --------------- */

/* The gradients of keys and values are the heads', added one after another, although
 * there is memory for the shares of a few at a time only. */
static void
check_shared_heads(void)
{
    const int64_t heads = 32, N = 1 << 15, D = 64, n = N * D;
    const attn_problem all = dot_problem(heads, 1, N, D, heads);
    const attn_problem one = dot_problem(1, 1, N, D, 1);
    const float *q = numbers(heads * D), *k = numbers(n), *v = numbers(n);
    const float *grad = numbers(heads * D);
    float *dq = numbers(heads * D), *dk = numbers(n), *dv = numbers(n);
    float *dq_h = numbers(D), *dk_h = numbers(n), *dv_h = numbers(n);
    float *dk_sum = calloc((size_t)n, sizeof *dk_sum);
    float *dv_sum = calloc((size_t)n, sizeof *dv_sum);
    const attn_gradients d = {.queries = dq, .keys = dk, .values = dv};
    const attn_gradients d_h = {.queries = dq_h, .keys = dk_h, .values = dv_h};

    attn_inputs in = {attn_dense(q, 1, D), attn_dense(k, N, D), attn_dense(v, N, D)};
    backward(&d, grad, &in, &all, 2);
    for (int64_t h = 0; h < heads; h++) {
        in.queries = attn_dense(q + h * D, 1, D);
        backward(&d_h, grad + h * D, &in, &one, 1);
        check(memcmp(dq_h, dq + h * D, (size_t)D * sizeof *dq) == 0, "dq of a head");
        for (int64_t i = 0; i < n; i++) {
            dk_sum[i] += dk_h[i];
            dv_sum[i] += dv_h[i];
        }
    }
    check(memcmp(dk, dk_sum, (size_t)n * sizeof *dk) == 0, "dk is not the heads' sum");
    check(memcmp(dv, dv_sum, (size_t)n * sizeof *dv) == 0, "dv is not the heads' sum");
}

/* Scratch of a backward: at most twice the gradients of keys and values and 64 MiB, and
 * 1 MiB for blocks. */
static void
check_backward_memory(void)
{
    static const struct {
        int64_t B, M, N, group;
    } shapes[] = {{32, 1, 1 << 18, 32}, {8, 1, 1 << 18, 1},    {1, 4096, 1 << 18, 1},
                  {64, 4096, 4096, 8},  {64, 300, 1 << 17, 4}, {1, 1, 1, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int64_t N = shapes[i].N, D = 64;
        const attn_problem p = dot_problem(shapes[i].B, shapes[i].M, N, D,
                                           shapes[i].group);
        const attn_gradients d = {.queries = NULL};
        const attn_grad_outputs grad = {.output = NULL};
        double gradients = 8.0 * (double)(p.B / p.group) * (double)(N * D);
        for (int threads = 1; threads <= 256; threads *= 4) {
            size_t size = attn_backward_workspace(&p, &d, &grad, threads);
            check((double)size <= 2.0 * gradients + 65.0 * MIB + threads * 0.25 * MIB,
                  "the backward's scratch is larger than promised");
        }
    }
}

/* A decoder's step over keys that were prepared needs no memory for each key. */
static void
check_prepared_memory(void)
{
    attn_problem p = dot_problem(1, 1, 1 << 20, 64, 1);
    p.score = &attn_score_additive;
    p.H = 64;
    check((double)attn_forward_workspace(&p, false, 1) > 256.0 * MIB,
          "keys take no memory");
    check((double)attn_keys_of_score.size(&p, p.N) > 256.0 * MIB,
          "keys take no memory");
    p.prepared = &p; /* only whether there are any counts */
    check((double)attn_forward_workspace(&p, false, 1) < MIB,
          "prepared keys take memory");
}

/* ---- sizes that overflow --------------------------------------------------------- */

static void
check_overflow(void)
{
    attn_problem p = {.B = INT64_C(1) << 62,
                      .M = 4,
                      .N = 1,
                      .Dq = 1,
                      .Dk = 1,
                      .Dv = 1,
                      .H = 1,
                      .group = INT64_C(1) << 62,
                      .score = &attn_score_additive};
    check(attn_forward_workspace(&p, false, 1) == SIZE_MAX, "B * M overflows");
    p.B = p.group = 1;
    p.M = 1;
    check(attn_forward_workspace(&p, false, 1) != SIZE_MAX, "nothing overflows");
    check(attn_keys_of_score.size(&p, 8) != SIZE_MAX, "nothing overflows");
    check(attn_keys_of_score.size(&p, INT64_MAX / 2) == SIZE_MAX,
          "the capacity overflows");
    p.B = 4;
    check(attn_keys_of_score.size(&p, INT64_MAX / 2) == SIZE_MAX,
          "rows of keys overflow");
    p.H = INT64_C(1) << 31;
    check(attn_keys_of_score.size(&p, 8) == SIZE_MAX,
          "hidden units are too many for an int");
    p.score = &attn_score_dot;
    p.H = 0;
    p.B = p.group = INT64_C(1) << 60;
    p.N = 1 << 20;
    check(attn_forward_workspace(&p, false, 1) == SIZE_MAX,
          "parts of the keys overflow");
    p.M = 1 << 20;
    const attn_gradients d = {.queries = NULL};
    const attn_grad_outputs grad = {.output = NULL};
    check(attn_backward_workspace(&p, &d, &grad, 1) == SIZE_MAX, "groups overflow");
    p = heads_problem(1, 1, 1);
    check(attn_multi_head_workspace(&p, false, false, 1) != SIZE_MAX,
          "nothing overflows");
    check(attn_keys_of_heads.backward_workspace(&p) != SIZE_MAX, "nothing overflows");
    p.B *= 8;
    p.N = INT64_MAX / 2;
    check(attn_keys_of_heads.backward_workspace(&p) == SIZE_MAX,
          "rows of keys overflow");
    p = heads_problem(1, 1, 1);
    p.H = INT64_C(1) << 31;
    check(attn_multi_head_workspace(&p, false, false, 1) == SIZE_MAX &&
              attn_keys_of_heads.size(&p, 8) == SIZE_MAX,
          "hidden units are too many for an int");
}

/* ---- masks are looked at once ---------------------------------------------------- */

static double
seconds_since(clock_t start)
{
    return (double)(clock() - start) / CLOCKS_PER_SEC;
}

/* A mask that forbids everything costs a backward what it costs a forward: a scan. */
static void
check_masks_are_read_once(void)
{
    const int64_t M = 4096, N = 4096;
    attn_problem p = dot_problem(1, M, N, 1, 1);
    const attn_axis axis = {1, M * N};
    p.masks.mask = (attn_view){calloc((size_t)(M * N), 1), &axis, 1, N, 1};
    p.empty_rows = ATTN_EMPTY_ZERO;
    const float *x = numbers(M);
    float *dq = numbers(M), *dk = numbers(N), *dv = numbers(N), *output = numbers(M);
    const attn_gradients d = {.queries = dq, .keys = dk, .values = dv};
    const attn_inputs in = {attn_dense(x, M, 1), attn_dense(x, N, 1),
                            attn_dense(x, N, 1)};
    double fastest[2] = {1e9, 1e9};
    for (int i = 0; i < 7; i++) {
        attn_run run = {.threads = 1};
        void *work = allocate(attn_forward_workspace(&p, false, 1));
        clock_t start = clock();
        attn_forward(output, NULL, NULL, &in, &p, work, &run);
        fastest[0] = fmin(fastest[0], seconds_since(start));
        free(work);
        start = clock();
        backward(&d, x, &in, &p, 1);
        fastest[1] = fmin(fastest[1], seconds_since(start));
    }
    for (int64_t m = 0; m < M; m++) {
        check(dq[m] == 0.0f && output[m] == 0.0f, "an empty row is not 0");
    }
    printf("forward %.2f ms, backward %.2f ms\n", 1e3 * fastest[0], 1e3 * fastest[1]);
    check(fastest[1] < 1.5 * fastest[0], "the backward scans the masks again");
}

static bool
is_written(void *x)
{
    return !isnan(*(const float *)x);
}

/* A backward that is interrupted when its walk is over: while it computes the
 * gradients of queries and of what projected them. */
static void
check_stop_after_walk(void)
{
    attn_cpu_select("generic"); /* not so fast that nobody asks meanwhile */
    attn_problem p = {.B = 1,
                      .M = 64,
                      .N = 1,
                      .Dq = 4096,
                      .Dk = 1,
                      .Dv = 1,
                      .H = 2048,
                      .group = 1,
                      .score = &attn_score_additive};
    p.parameters[0] = numbers(p.H * p.Dq);
    p.parameters[1] = numbers(p.H);
    p.parameters[2] = numbers(p.H);
    const attn_inputs in = {attn_dense(numbers(p.M * p.Dq), p.M, p.Dq),
                            attn_dense(numbers(1), 1, 1), attn_dense(numbers(1), 1, 1)};
    float *dq = numbers(p.M * p.Dq);
    dq[0] = NAN;
    const attn_gradients d = {
        .queries = dq,
        .keys = numbers(1),
        .values = numbers(1),
        .parameters = {numbers(p.H * p.Dq), numbers(p.H), numbers(p.H)}};
    const attn_grad_outputs grad = {.output = numbers(p.M)};
    const attn_saved saved = {NULL, NULL, NULL};
    attn_run run = {1, is_written, dq, .next_poll_ns = 1};
    void *work = allocate(attn_backward_workspace(&p, &d, &grad, 1));
    check(attn_backward(&d, &grad, &saved, &in, &p, work, &run) == ATTN_INTERRUPTED,
          "the backward went on to its end");
}

static bool
always(void *x)
{
    (void)x;
    return true;
}

/* Multi-head attention, interrupted as soon as it asks; and when the gradient of W_o is
 * there. */
static void
check_stop_multi_head(void)
{
    attn_cpu_select("generic");
    const attn_problem p = heads_problem(2048, 512, 512);
    const attn_inputs in = {attn_dense(numbers(p.M * p.Dq), p.M, p.Dq),
                            attn_dense(numbers(1), 1, 1), attn_dense(numbers(1), 1, 1)};
    float *dW_o = numbers(p.H * p.H), *output = numbers(p.M * p.H);
    dW_o[0] = NAN;
    const attn_gradients d = {
        .queries = numbers(p.M * p.Dq),
        .keys = numbers(1),
        .values = numbers(1),
        .parameters = {numbers(p.H * p.Dq), numbers(p.H), numbers(p.H), dW_o}};
    const attn_grad_outputs grad = {.output = numbers(p.M * p.H)};
    const attn_saved saved = {NULL, NULL, NULL};
    attn_run run = {1, always, NULL, .next_poll_ns = 1};
    void *work = allocate(attn_multi_head_workspace(&p, false, false, 1));
    check(attn_multi_head_forward(output, NULL, NULL, NULL, &in, &p, work, &run) ==
              ATTN_INTERRUPTED,
          "the forward went on to its end");
    work = allocate(attn_multi_head_backward_workspace(&p, &d, &grad, false, 1));
    run = (attn_run){1, is_written, dW_o, .next_poll_ns = 1};
    check(attn_multi_head_backward(&d, &grad, &saved, NULL, &in, &p, work, &run) ==
              ATTN_INTERRUPTED,
          "the backward went on to its end");
}

/* A backward that is interrupted as soon as it asks: additive, while it projects; of dot
 * products, in its walk. And one of no entries, whose parameters' gradients are 0. */
static void
check_stop_at_once(void)
{
    attn_problem p = {.B = 1,
                      .M = 1,
                      .N = 1,
                      .Dq = 1,
                      .Dk = 1,
                      .Dv = 1,
                      .H = 1,
                      .group = 1,
                      .score = &attn_score_additive,
                      .parameters = {numbers(1), numbers(1), numbers(1)}};
    const attn_inputs in = {attn_dense(numbers(1), 1, 1), attn_dense(numbers(1), 1, 1),
                            attn_dense(numbers(1), 1, 1)};
    float *dw_v = numbers(1);
    const attn_gradients d = {.queries = numbers(1),
                              .keys = numbers(1),
                              .values = numbers(1),
                              .parameters = {numbers(1), numbers(1), dw_v}};
    const attn_grad_outputs grad = {.output = numbers(1)};
    const attn_saved saved = {NULL, NULL, NULL};
    void *work = allocate(attn_backward_workspace(&p, &d, &grad, 1));
    attn_run run = {1, always, NULL, .next_poll_ns = 1};
    check(attn_backward(&d, &grad, &saved, &in, &p, work, &run) == ATTN_INTERRUPTED,
          "the backward went on");
    attn_problem dot = dot_problem(1, 1, 1, 1, 1);
    work = allocate(attn_backward_workspace(&dot, &d, &grad, 1));
    run = (attn_run){1, always, NULL, .next_poll_ns = 1};
    check(attn_backward(&d, &grad, &saved, &in, &dot, work, &run) == ATTN_INTERRUPTED,
          "the walk went on");
    p.B = 0;
    run = (attn_run){.threads = 1};
    check(attn_backward(&d, &grad, &saved, &in, &p, work, &run) == 0 && *dw_v == 0.0f,
          "the gradient of nothing is not 0");
}

static const struct {
    const char *name;
    void (*run)(void);
} checks[] = {
    {"shared_heads", check_shared_heads},
    {"backward_memory", check_backward_memory},
    {"prepared_memory", check_prepared_memory},
    {"overflow", check_overflow},
    {"masks_are_read_once", check_masks_are_read_once},
    {"stop_after_walk", check_stop_after_walk},
    {"stop_multi_head", check_stop_multi_head},
    {"stop_at_once", check_stop_at_once},
};

int
main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        if (argc == 2 && strcmp(argv[1], checks[i].name) == 0) {
            checks[i].run();
            return 0;
        }
    }
    fprintf(stderr, "usage: %s CHECK\n", argv[0]);
    return 2;
}
