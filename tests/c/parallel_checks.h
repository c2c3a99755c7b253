/*
 * parallel_checks.h -- what the programs that test the pool share.
 */
#ifndef PARALLEL_CHECKS_H
#define PARALLEL_CHECKS_H

#undef NDEBUG /* the checks are asserts */

#include "../../csrc/os/cpu_count.h"
#include "../../csrc/os/parallel.h"

#include <assert.h>
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef __has_feature /* clang's way to tell about sanitizers; gcc's is a macro each */
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define TSAN 1
#else
#define TSAN 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define ASAN 1
#else
#define ASAN 0
#endif

enum { MANY = 1000, THREADS_MAX = 256 };

/* What has not come by then never will: a hang is an error, a slow machine is none. */
enum { HANG_SECONDS = 900 };

#define PLENTY_US 1e6 /* an estimate of the work that never limits the threads */

static inline double
seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void
sleep_us(long us)
{
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

/* Threads of this process, or 0 where the system does not say. */
static inline int
threads_now(void)
{
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    if (tasks != NULL) {
        for (struct dirent *e; (e = readdir(tasks)) != NULL;) {
            n += e->d_name[0] != '.';
        }
        closedir(tasks);
    }
    return n;
}

/* Runs check() in a forked child, which must leave with status 0. */
static inline void
in_child(void (*check)(void))
{
    int status;
    fflush(stdout);
    pid_t child = fork();
    assert(child >= 0);
    if (child == 0) {
        alarm(HANG_SECONDS);
        check();
        _exit(0);
    }
    assert(waitpid(child, &status, 0) == child);
    assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- tasks ----------------------------------------------------------------------- */

struct ledger {
    atomic_int times[MANY]; /* how often each task ran */
    int threads;
    bool in_order;
    int64_t last;
};

static inline void
count_task(void *ctx, int64_t task, int worker)
{
    struct ledger *ledger = ctx;
    assert(0 <= worker && worker < ledger->threads);
    atomic_fetch_add(&ledger->times[task], 1);
    if (ledger->in_order) {
        assert(worker == 0 && task == ledger->last + 1);
        ledger->last = task;
    }
}

static inline void
assert_each_once(int threads, int64_t tasks, double work_us, bool in_order)
{
    struct ledger ledger = {.threads = threads, .in_order = in_order, .last = -1};
    attn_run run = {.threads = threads};
    assert(attn_parallel_for(&run, tasks, work_us, count_task, &ledger));
    for (int64_t i = 0; i < MANY; i++) {
        assert(atomic_load(&ledger.times[i]) == (i < tasks));
    }
}

/* Tasks that meet: each waits until `expected` of them run at the same time, so they
 * succeed only on that many threads. */
struct meeting {
    int expected;
    atomic_int arrived;
    atomic_int workers[THREADS_MAX]; /* how many tasks each worker number ran */
};

static inline void
meet(void *ctx, int64_t task, int worker)
{
    struct meeting *meeting = ctx;
    double end = seconds() + HANG_SECONDS;
    (void)task;
    atomic_fetch_add(&meeting->workers[worker], 1);
    atomic_fetch_add(&meeting->arrived, 1);
    while (atomic_load(&meeting->arrived) < meeting->expected) {
        assert(seconds() < end);
        sched_yield();
    }
}

/* As many tasks as threads, all at once, each under its own worker number. */
static inline void
assert_meets(int threads)
{
    struct meeting meeting = {.expected = threads};
    attn_run run = {.threads = threads};
    assert(attn_parallel_for(&run, threads, PLENTY_US, meet, &meeting));
    for (int i = 0; i < THREADS_MAX; i++) {
        assert(atomic_load(&meeting.workers[i]) == (i < threads));
    }
}

static inline void *
do_nothing(void *unused)
{
    return unused;
}

/* Before the checks: for ThreadSanitizer a first thread, with which it starts one of its
 * own that we must not count. */
static inline void
begin(void)
{
    if (TSAN) {
        pthread_t thread;
        assert(pthread_create(&thread, NULL, do_nothing, NULL) == 0);
        assert(pthread_join(thread, NULL) == 0);
    }
}

#endif
