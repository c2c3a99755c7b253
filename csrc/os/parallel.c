/*
 * parallel.c -- the pool of threads behind attn_parallel_for.
 *
 * How a call goes. What the threads agree on is one 64-bit word: tasks not yet taken,
 * places free for workers, workers inside. The caller writes the job, opens it by
 * storing the word, and takes tasks itself until none is left. A worker joins by one
 * compare-and-swap that takes a place and a first task together: whoever is inside
 * holds a task, so the caller never waits for a thread that woke too late. Only workers
 * inside read the job, and the caller writes the next one when nobody is.
 *
 * How idle threads wait. A worker spins for SPIN_NS, then sleeps on a condition
 * variable; so does the caller in the tail of a call, except that it gets up to ask
 * about interrupts. There is no shutdown: nothing is ever freed, so the process may
 * end, or call us from atexit(), with the pool in any state. After fork() the child has
 * no workers and starts its own when it needs them.
 *
 * All state is static. All atomics are sequentially consistent: the handshakes with
 * sleepers need it, and tasks are too coarse for a weaker order to pay.
 *
 * Measured in microseconds, the minimum of many calls with 16 equal tasks, on a virtual
 * machine with two CPUs of an Intel Xeon (Emerald Rapids), others at work; gcc 12:
 *
 *     one thread                                99     998   10010
 *     two, hot: the worker is still spinning    50     500    5020
 *     two, cold: 2 ms after the last call       64     510    5070
 *
 * Waking a thread there costs the waker 12 to 40 us and the woken 35 to 140. Left to
 * the system, the worker came in time for half of the cold calls of 100 us, mostly on
 * the caller's CPU, and the median call took 207 us; kept off that CPU (threads.c), it
 * came in time for nine of ten, and the median call took 78.
 */
#include "parallel.h"

#include <fenv.h>
#include <stddef.h>

#include "threads.h"

#define WORTH_US 25.0             /* work that makes it worth waking one thread */
#define SPIN_NS INT64_C(100000)   /* about what it costs to be woken */
#define POLL_NS INT64_C(20000000) /* between questions about interrupts */

/* ---- the word -------------------------------------------------------------------- */

/* bits 0-47: tasks not yet taken, 48-55: places for workers, 56-63: workers inside */
static const uint64_t ONE_TASK = 1;
static const uint64_t ONE_PLACE = UINT64_C(1) << 48;
static const uint64_t ONE_INSIDE = UINT64_C(1) << 56;

static int64_t
tasks_left(uint64_t word)
{
    return (int64_t)(word & (ONE_PLACE - 1));
}

static int
places_left(uint64_t word)
{
    return (int)(word >> 48 & 255);
}

typedef bool condition(uint64_t word);

static bool
has_task(uint64_t word)
{
    return tasks_left(word) > 0;
}

static bool
is_open(uint64_t word)
{
    return tasks_left(word) > 0 && places_left(word) > 0;
}

static bool
nobody_inside(uint64_t word)
{
    return word < ONE_INSIDE;
}

/* ---- the state ------------------------------------------------------------------- */

struct job {
    attn_task *fn;
    void *ctx;
    attn_run *run;
    int64_t tasks;
    int places;        /* for workers */
    bool roomy;        /* a CPU for each thread, so that spinning takes none away */
    fenv_t float_mode; /* the caller's: rounding and flush-to-zero change bits */
};

static struct {
    _Alignas(64) _Atomic uint64_t word; /* on a cache line of its own */
    _Alignas(64) struct job job;

    atomic_bool busy; /* a call has the pool; that call alone uses the next one */
    bool handles_fork;

    /* The lock is held from the last look at the word until asleep. */
    atomic_int sleepers; /* workers that wait for ATTN_OPENED */
    atomic_bool caller_sleeps;
} pool;

static _Thread_local bool is_worker;    /* this thread belongs to the pool */
static _Thread_local attn_run *led_run; /* the call for which it has the pool */

static int64_t
least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- interrupts ------------------------------------------------------------------ */

static void give_up(void *run);

/* is_worker: a call nested in a task numbers its only thread 0, whoever that is. */
bool
attn_stopped(attn_run *run, int worker)
{
    bool may_ask = worker == 0 && !is_worker && run->interrupted != NULL;
    if (may_ask && !atomic_load(&run->stop)) {
        int64_t now = attn_now_ns();
        if (run->next_poll_ns == 0) {
            run->next_poll_ns = now + POLL_NS;
        } else if (now >= run->next_poll_ns) {
            /* The question may end the thread instead of coming back: so does CPython
             * to one that asks for the GIL of an interpreter that is shutting down. */
            if (attn_ask(run->interrupted, run->arg, give_up, run)) {
                atomic_store(&run->stop, true);
            }
            run->next_poll_ns = attn_now_ns() + POLL_NS;
        }
    }
    return atomic_load(&run->stop);
}

/* ---- taking tasks ---------------------------------------------------------------- */

/* Adds `change` to the word if `allowed`. Returns the word before it, or 0 if not. */
static uint64_t
change_word(uint64_t change, condition *allowed)
{
    uint64_t word = atomic_load(&pool.word);
    while (allowed(word)) {
        if (atomic_compare_exchange_weak(&pool.word, &word, word + change)) {
            return word;
        }
    }
    return 0;
}

/* Runs the task taken from `word`, then takes others until none is left. After a stop it
 * takes none: in a forked child they would be another call's. */
static void
work(const struct job *job, uint64_t word, int worker)
{
    while (word != 0 && !attn_stopped(job->run, worker)) {
        job->fn(job->ctx, job->tasks - tasks_left(word), worker);
        word = atomic_load(&job->run->stop) ? 0 : change_word(-ONE_TASK, has_task);
    }
}

/* Reading the clock is the pause between two looks, and names no instruction set. */
static bool
spin_until(condition *holds)
{
    int64_t end = attn_now_ns() + SPIN_NS;
    bool held = holds(atomic_load(&pool.word));
    while (!held && attn_now_ns() < end) {
        held = holds(atomic_load(&pool.word));
    }
    return held;
}

/* Wakes up to two sleepers for the free places. Every thread that joins does so too, so
 * a large pool wakes as a tree and the caller pays for two.
 *
 * No wake-up is lost: a worker counts itself among the sleepers and then looks at the
 * word; here the word was changed before the sleepers are counted. So the worker sees
 * the word or we see the worker, and holding the lock once waits until it is really
 * asleep. */
static void
wake_two(void)
{
    uint64_t word = atomic_load(&pool.word);
    int64_t wanted = least(least(places_left(word), tasks_left(word)), 2);
    wanted = least(wanted, atomic_load(&pool.sleepers));
    if (wanted > 0) {
        attn_lock();
        attn_unlock();
        for (; wanted > 0; wanted--) {
            attn_signal(ATTN_OPENED);
        }
    }
}

/* ---- the workers ----------------------------------------------------------------- */

static void
sleep_until_open(void)
{
    attn_lock();
    atomic_fetch_add(&pool.sleepers, 1);
    while (!is_open(atomic_load(&pool.word))) {
        attn_wait(ATTN_OPENED, ATTN_FOREVER);
    }
    atomic_fetch_sub(&pool.sleepers, 1);
    attn_unlock();
}

/* Works on the job joined at `word`. Returns whether to spin for the next one. The
 * caller is woken as workers are, see wake_two(). */
static bool
help(uint64_t word)
{
    int worker = pool.job.places - places_left(word) + 1;
    bool roomy = pool.job.roomy;
    fesetenv(&pool.job.float_mode);
    wake_two();
    work(&pool.job, word, worker);
    if (nobody_inside(atomic_fetch_sub(&pool.word, ONE_INSIDE) - ONE_INSIDE) &&
        atomic_load(&pool.caller_sleeps)) {
        attn_lock();
        attn_unlock();
        attn_signal(ATTN_EMPTIED);
    }
    return roomy;
}

static void *
worker_main(void *unused)
{
    bool spin = true;
    is_worker = true;
    for (;;) {
        if (!spin || !spin_until(is_open)) {
            sleep_until_open();
        }
        uint64_t word = change_word(ONE_INSIDE - ONE_PLACE - ONE_TASK, is_open);
        if (word != 0) {
            spin = help(word);
        }
    }
    return unused;
}

/* The child of fork() has one thread and no worker, whatever the pool was doing. If
 * that thread forked in run->interrupted, its call lost the pool, and tasks with the
 * workers. */
static void
reset_after_fork(void)
{
    if (led_run != NULL) {
        atomic_store(&led_run->stop, true);
        led_run = NULL;
    }
    attn_threads_forget();
    atomic_store(&pool.word, 0);
    atomic_store(&pool.sleepers, 0);
    atomic_store(&pool.caller_sleeps, false);
    atomic_store(&pool.busy, false);
}

/* Brings the pool up to `workers` threads, or to as many as can be had: how many. */
static int
grow(int workers)
{
    if (!pool.handles_fork) {
        pool.handles_fork = attn_after_fork(reset_after_fork);
    }
    return pool.handles_fork ? attn_threads_start(workers, worker_main) : 0;
}

/* ---- the caller ------------------------------------------------------------------ */

static int
useful_threads(int threads, int64_t tasks, double work_us)
{
    if (tasks >= (int64_t)ONE_PLACE || !(work_us >= 2 * WORTH_US)) {
        return 1; /* too many to count, too little to share, or not a number */
    }
    threads = (int)least(least(threads, tasks), ATTN_THREADS_MAX + 1);
    return work_us < WORTH_US * threads ? (int)(work_us / WORTH_US) : threads;
}

/* Waits for the workers that still hold a task. Sleep ends every 20 ms to ask about
 * interrupts: not under the lock, for the answer may run any code. */
static void
wait_for_workers(attn_run *run, bool roomy)
{
    if (roomy && spin_until(nobody_inside)) {
        return;
    }
    attn_lock();
    atomic_store(&pool.caller_sleeps, true);
    while (led_run == run && !nobody_inside(atomic_load(&pool.word))) {
        attn_wait(ATTN_EMPTIED, POLL_NS);
        attn_unlock();
        attn_stopped(run, 0);
        attn_lock();
    }
    atomic_store(&pool.caller_sleeps, false);
    attn_unlock();
}

/* The call no longer has the pool, and no worker holds anything of it. In a child
 * forked by run->interrupted it lost the pool long ago, perhaps to another call. */
static void
leave_pool(attn_run *run, bool roomy)
{
    if (led_run == run) {
        atomic_fetch_and(&pool.word, -ONE_INSIDE); /* a stop leaves tasks and places */
        wait_for_workers(run, roomy);
    }
    if (led_run == run) {
        led_run = NULL;
        atomic_store(&pool.busy, false);
    }
}

/* The thread of this call is being ended, and its stack with it. */
static void
give_up(void *run)
{
    atomic_store(&((attn_run *)run)->stop, true);
    leave_pool(run, false);
}

/* The caller has the pool. It keeps its own copy of the job: in a child forked by
 * run->interrupted, another call may have used the pool before this one goes on. */
static void
lead(struct job job)
{
    job.places = (int)least(job.places, grow(job.places));
    job.roomy = attn_threads_place(job.places);
    fegetenv(&job.float_mode);
    led_run = job.run;
    pool.job = job;
    atomic_store(&pool.word, (uint64_t)job.places * ONE_PLACE + (uint64_t)job.tasks);
    wake_two();
    work(&job, change_word(-ONE_TASK, has_task), 0);
    leave_pool(job.run, job.roomy);
}

/* Calls that find the pool taken, nested ones among them, run on their own thread. */
bool
attn_parallel_for(attn_run *run, int64_t tasks, double work_us, attn_task *fn,
                  void *ctx)
{
    int threads = useful_threads(run->threads, tasks, work_us);
    if (threads > 1 && !atomic_exchange(&pool.busy, true)) {
        lead((struct job){fn, ctx, run, tasks, .places = threads - 1});
    } else {
        for (int64_t task = 0; task < tasks && !attn_stopped(run, 0); task++) {
            fn(ctx, task, 0);
        }
    }
    return !atomic_load(&run->stop);
}
