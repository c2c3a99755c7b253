/*
 * prove_tiles.c -- for all sizes: a task of keys.c stays inside the keys that there are and the rows
 * that were taken for them; a modifier stays inside the tile, its own arrays and the gradient of
 * the bias. As prove_indices.c, and refuted with -DWRONG as well.
 *
 * -DPROVE_KEYS, -DPROVE_SOFTCAP or -DPROVE_BIAS, whose functions are their files' own; of modifiers
 * with -DLANES, the lanes of a block; of groups with -DOF_QUERIES and -DOF_KEYS, 0 or 1, as products of
 * three sizes that are known take seconds, and others take hours. What is called does nothing here but look at where it was
 * sent. That a tile is one of a block's keys, and where rows of a view and keys of an operand lie,
 * is proved in prove_indices.c, and taken for granted here.
 */
#if defined(PROVE_KEYS)
#include "../../csrc/core/keys.c"
#elif defined(PROVE_SOFTCAP)
#include "../../csrc/core/softcap.c"
#else
#include <string.h>
static void *cleared(void *to, int value, size_t size);
#define memset cleared
#include "../../csrc/core/bias.c"
#endif

#ifdef WRONG
enum { MORE = 1 };
#else
enum { MORE = 0 };
#endif

static void
within(prove_wide at, prove_wide count, prove_wide room)
{
    __ESBMC_assert(at >= 0 && count >= 0 && at + count + MORE <= room, "within");
}

/* ---- tasks of keys --------------------------------------------------------------- */

#ifdef PROVE_KEYS
static int64_t entries, keys, capacity;
static const uint8_t in_use[1]; /* of all keys, if it is given */

/* How many are alike is any number; after that, all. A third turn would be as the second. */
int64_t
attn_use_run(const uint8_t *use, int64_t at, int64_t end, bool *used)
{
    static bool again;
    within(at, end - at,
           use == in_use ? (prove_wide)entries * (prove_wide)keys : TASK_KEYS);
    *used = nondet_bool();
    const int64_t n = again ? end - at : any_size(1, end - at);
    again = true;
    return n;
}

void
attn_lasting_keys(uint8_t *use, const attn_problem *p, int64_t b, int64_t j, int64_t n)
{
    (void)use;
    within(b, 1, entries);
    within(j, n, p->N);
    within(0, n, TASK_KEYS);
}

static void
make_keys(void *rows, int64_t row, attn_span span, int64_t n, const attn_problem *p)
{
    (void)rows, (void)span, (void)p;
    within(row, n, (prove_wide)entries * (prove_wide)capacity);
}

static void
make_keys_backward(attn_call *c, int64_t e, int64_t j, int64_t n)
{
    within(e, 1, entries);
    within(j, n, c->p->N);
}

int
prove_keys(void)
{
    const attn_score score = {.make_keys = make_keys,
                              .make_keys_backward = make_keys_backward};
    const attn_operand operand = {.heads = 1};
    const attn_gradients d = {.keys = NULL};
    attn_prepared to = {.rows = NULL};
    key_job job = {.keys = &operand};
    attn_problem p = {.score = &score, .group = 1};
    attn_call call = {.p = &p, .d = &d};

    entries = any_size(1, MOST);
    job.first = any_size(0, MOST);
    job.end = any_size(job.first, MOST);
    keys = job.end - job.first;
    to.capacity = capacity = any_size(job.end, MOST);
    job.p = &p;
    job.use = nondet_bool() ? in_use : NULL;
    p.N = any_size(job.end, MOST);
    if (nondet_bool()) {
        job.to = &to;
    } else {
        job.call = &call;
    }
    __ESBMC_assume((prove_wide)entries * (prove_wide)capacity <= INT64_MAX);
    const int64_t chunks = attn_ceil_div(keys, TASK_KEYS);
    const int64_t task = any_size(0, INT64_MAX);
    __ESBMC_assume(keys > 0 &&
                   (prove_wide)task < (prove_wide)entries * (prove_wide)chunks);
    step(task / chunks, entries, keys);
    step(task / chunks, entries, capacity);
    key_task(&job, task, 0);
    return 0;
}
#endif

/* ---- modifiers ------------------------------------------------------------------- */

#ifndef PROVE_KEYS
static float S[1], own_numbers[1];
static int64_t most; /* keys of a tile, at most */
static attn_problem problem;
static attn_call call = {.p = &problem};
static attn_block block = {.call = &call, .S = S, .lanes = LANES};

static int
any_int(int least, int last)
{
    return (int)any_size(least, last);
}

static void
any_tile(void)
{
    attn_tile *t = &block.tile;
    problem.N = any_size(1, MOST);
    most = problem.N < ATTN_KEYS ? problem.N : ATTN_KEYS;
    block.rows.count = any_int(1, LANES);
    t->keys = any_int(1, (int)most);
    t->k0 = any_size(0, problem.N - t->keys);
    t->first = any_int(0, t->keys);
    t->end = any_int(t->first, t->keys);
}

/* Numbers of an array that begins at `of`, (keys, lanes) if `rows` is the tile's. */
static void
inside(const float *x, const float *of, int64_t count, int64_t rows)
{
    within(x - of, count, (prove_wide)rows * LANES);
}
#endif

#ifdef PROVE_SOFTCAP
static void
softcap(float *x, float *slope, int64_t n, float cap, float inv)
{
    (void)cap, (void)inv;
    inside(x, S, n, most);
    if (slope != NULL) {
        inside(slope, own_numbers, n, most);
    }
}

static const attn_kernels kernels = {.softcap = softcap};
const attn_kernels *attn_simd = &kernels;

int
prove_softcap(void)
{
    any_tile();
    softcap_own own = {.slope = nondet_bool() ? own_numbers : NULL};
    tile(&block, &own);
    within(first_number(&block), numbers(&block), (prove_wide)most * LANES);
    return 0;
}
#endif

#ifdef PROVE_BIAS
static float bias[1], sum[1], share[1], gradient[1];
static int64_t row;     /* of the view, where the block's first query begins */
static int64_t entries; /* of the gradient, whose rows lie one behind another */
static bool to_gradient;
static int64_t shares; /* groups that have one */

/* Numbers of the gradient. */
static void
in_gradient(const float *to, prove_wide count)
{
    const int64_t rows = problem.masks.bias.stride_m != 0 ? problem.M : 1;
    within(to - gradient, count, (prove_wide)entries * rows * columns_of(&problem));
}

/* Numbers of the share of a group: its rows, of the bias's columns. */
static void
in_share(const float *to, prove_wide count)
{
    within(to - share, count, (prove_wide)group_rows(&call) * columns_of(&problem));
}

int64_t
attn_view_row(const attn_view *v, int64_t b, int64_t m)
{
    (void)v;
    within(b, 1, problem.B);
    within(m, 1, problem.M);
    if (to_gradient) { /* as prove_indices.c has it of views */
        const int64_t entry = any_size(0, entries - 1), columns = columns_of(&problem);
        const int64_t rows = v->stride_m != 0 ? problem.M : 1;
        step(entry, entries, rows * columns);
        row = (entry * rows + (v->stride_m != 0 ? m : 0)) * columns;
    }
    return row;
}

static void
pack(float *to, int lanes, const float *from, int64_t ld, int rows, int64_t cols,
     float gain)
{
    (void)ld, (void)gain;
    within(rows, 0, lanes);
    inside(to, own_numbers, cols * lanes, most);
    within(from - bias - row, cols, columns_of(&problem));
}

static void
add_tile(float *x, int lanes, int rows, const float *added, int ld, float gain)
{
    (void)gain;
    inside(x, S, (int64_t)rows * lanes, most);
    inside(added, own_numbers, (int64_t)(rows > 0 ? rows - 1 : 0) * ld + lanes, most);
}

static void
matmul(float *to, int64_t ld, const float *x, int64_t ldx, int64_t sx, const float *y,
       int64_t ldy, int64_t rows, int64_t cols, int64_t terms, attn_into into)
{
    (void)ld, (void)x, (void)ldx, (void)sx, (void)ldy, (void)terms, (void)into;
    if (to_gradient) {
        in_gradient(to, rows * cols);
        within(y - share, cols,
               (prove_wide)group_rows(&call) * columns_of(&problem) * shares);
    } else if (to == sum) {
        inside(to, sum, rows * cols, 1);
    } else {
        in_share(to, rows * cols);
    }
}

static void
unpack(float *to, int64_t ld, const float *from, int lanes, int rows, int64_t cols,
       const float *factor)
{
    (void)from, (void)lanes, (void)factor;
    in_share(to, (prove_wide)(rows - 1) * ld + cols);
}

static const attn_kernels kernels = {
    .pack = pack, .unpack = unpack, .add_tile = add_tile, .matmul = matmul};
const attn_kernels *attn_simd = &kernels;

/* memset. */
static void *
cleared(void *to, int value, size_t size)
{
    const prove_wide count = size / sizeof(float);
    __ESBMC_assert(value == 0 && size % sizeof(float) == 0, "numbers");
    if (to == (void *)sum) {
        inside(to, sum, count, 1);
    } else if (to_gradient) {
        in_gradient(to, count);
    } else {
        in_share(to, count);
    }
    return to;
}

int64_t
attn_view_entries(const attn_view *v)
{
    (void)v;
    return entries;
}

/* Whether it has numbers for each of them. */
#ifndef OF_QUERIES
#define OF_QUERIES nondet_bool()
#define OF_KEYS nondet_bool()
#endif

static bias_own own = {.tile = own_numbers, .sum = sum, .to = share};

/* As plan_backward.c lays groups out: blocks of all lanes, from the first query on. */
static void
any_bias(void)
{
    any_tile();
    problem.B = any_size(1, MOST);
    problem.M = any_size(1, MOST);
    problem.masks.bias = (attn_view){.data = bias,
                                     .stride_m = OF_QUERIES ? any_size(1, MOST) : 0,
                                     .stride_j = OF_KEYS};
    call.group_queries = any_size(1, MOST);
    __ESBMC_assume(call.group_queries % LANES == 0);
    __ESBMC_assume((prove_wide)group_rows(&call) * (prove_wide)columns_of(&problem) <=
                   MOST); /* there it is */
}

int
prove_bias(void)
{
    any_bias();
    row = any_size(0, MOST);
    block.b = any_size(0, problem.B - 1);
    block.m0 = any_size(0, problem.M - 1);
    tile(&block, &own);

    const int64_t first = block.m0 % call.group_queries;
    __ESBMC_assume(first % LANES == 0 && block.m0 + block.rows.count <= problem.M);
    const int64_t rows = group_rows(&call), columns = columns_of(&problem);
    if (problem.masks.bias.stride_m != 0) {
        step(first, rows, columns);
        step(first + block.rows.count - 1, rows, columns);
    }
    tile_backward(&block, &own, S);
    store_backward(&block, &own);
    return 0;
}

/* A group, in which there are these queries; a gradient, and the group's part of it. */
static int64_t
any_group(int64_t *at, int64_t *left)
{
    static attn_gradients d = {.bias = gradient};
    any_bias();
    call.d = &d;
    call.groups = attn_ceil_div(problem.M, call.group_queries);
    entries = any_size(1, problem.B);
    const int64_t rows = group_rows(&call), columns = columns_of(&problem);
    const int64_t all = problem.masks.bias.stride_m != 0 ? problem.M : 1;
    __ESBMC_assume((prove_wide)entries * all <= MOST); /* there it is */
    __ESBMC_assume((prove_wide)entries * all * columns <= MOST);
    __ESBMC_assume((prove_wide)problem.B * call.groups <= INT64_MAX); /* and counted */
    const int64_t group = any_size(0, problem.B * call.groups - 1);
    *at = group % call.groups;
    step(*at, call.groups, call.group_queries);
    step(group / call.groups, problem.B, call.groups);
    const int64_t m0 = *at * call.group_queries;
    *left = problem.M - m0 < rows ? problem.M - m0 : rows;
    return group;
}

int
prove_begin(void)
{
    int64_t at, left;
    const int64_t group = any_group(&at, &left);
    step(left - 1, group_rows(&call), columns_of(&problem));
    to_gradient = share_size(&call) == 0;
    if (to_gradient) {
        step(at * call.group_queries + left - 1, problem.M, columns_of(&problem));
    }
    begin_group(&block, &own, group, to_gradient ? NULL : share);
    return 0;
}

/* One row of one group, of the shares of so many. */
int
prove_add(void)
{
    int64_t at, left;
    const int64_t group = any_group(&at, &left), rows = group_rows(&call);
    const int64_t columns = columns_of(&problem), r = any_size(0, rows - 1);
    const int64_t i = any_size(0, group), m = at * call.group_queries + r;
    to_gradient = true;
    shares = any_size(i + 1, MOST);
    __ESBMC_assume((prove_wide)rows * columns * shares <= INT64_MAX);
#ifdef WRONG /* where it is is looked for among small numbers: else the solver may take hours */
    __ESBMC_assume(rows <= 2 && columns <= 2 && shares <= 2);
#endif
    step(i, shares, rows * columns);
    step(r, rows, columns);
    if (m < problem.M) {
        step(m, problem.M, columns);
    }
    const share_job job = {&call, share, group - i, shares};
    add_row(&job, i, r);
    return 0;
}
#endif
