/*
 * threads.c -- threads for the pool, from POSIX. See threads.h.
 *
 * Where they run. A woken thread may land on the CPU of the thread that woke it, and
 * wait there for the end of the very work it should share. So the workers get the CPUs
 * allowed to the caller without the one the caller is on.
 */
#ifndef _WIN32
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* Linux: sched_getcpu, pthread_setaffinity_np, clock_gettime */
#endif

#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <time.h>

#include "cpu_count.h"

#define STACK_BYTES ((size_t)2 << 20) /* tasks use up to 256 KiB; musl would give 128 */

static pthread_t threads[ATTN_THREADS_MAX];
static int started;
static bool placed; /* all of them, where they were told to run last */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t events[] = {PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER};

/* ---- making threads -------------------------------------------------------------- */

/* Blocks every signal but those a thread brings on itself: the others are for the
 * threads of the program, while a crash must still reach its handler. */
static void
block_signals(sigset_t *before)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
    sigset_t set;
    sigfillset(&set);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        sigdelset(&set, own[i]);
    }
    pthread_sigmask(SIG_SETMASK, &set, before);
}

int
attn_threads_start(int wanted, void *(*body)(void *))
{
    pthread_attr_t attr;
    sigset_t before;
    if (started >= wanted || pthread_attr_init(&attr) != 0) {
        return started;
    }
    placed = false;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    block_signals(&before);
    while (started < wanted &&
           pthread_create(&threads[started], &attr, body, NULL) == 0) {
        started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return started;
}

void
attn_threads_forget(void)
{
    started = 0;
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&events[ATTN_OPENED], NULL);
    pthread_cond_init(&events[ATTN_EMPTIED], NULL);
}

bool
attn_after_fork(void (*reset)(void))
{
    return pthread_atfork(NULL, NULL, reset) == 0;
}

bool
attn_ask(bool (*question)(void *), void *arg, void (*give_up)(void *), void *call)
{
    bool yes;
    pthread_cleanup_push(give_up, call);
    yes = question(arg);
    pthread_cleanup_pop(0);
    return yes;
}

/* ---- where they run -------------------------------------------------------------- */

#ifdef __linux__

/* Costs 0.2 us, and 0.4 for each thread when the caller has moved. */
bool
attn_threads_place(int helpers)
{
    static cpu_set_t last;
    cpu_set_t set;
    int cpu = sched_getcpu();
    if (cpu < 0 || sched_getaffinity(0, sizeof set, &set) != 0) {
        return true; /* more CPUs than a cpu_set_t holds: there is room without us */
    }
    bool roomy = helpers < CPU_COUNT(&set);
    if (roomy) {
        CPU_CLR(cpu, &set);
    }
    if (!placed || !CPU_EQUAL(&set, &last)) {
        for (int i = 0; i < started; i++) {
            pthread_setaffinity_np(threads[i], sizeof set, &set);
        }
        placed = true;
        last = set;
    }
    return roomy;
}

#else /* the system decides */

bool
attn_threads_place(int helpers)
{
    (void)placed;
    return helpers < attn_cpu_count();
}

#endif

/* ---- waiting --------------------------------------------------------------------- */

void
attn_lock(void)
{
    pthread_mutex_lock(&lock);
}

void
attn_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

void
attn_wait(enum attn_event event, int64_t ns)
{
    struct timespec until;
    if (ns == ATTN_FOREVER) {
        pthread_cond_wait(&events[event], &lock);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until); /* the only clock every system takes */
    ns += until.tv_nsec;
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_cond_timedwait(&events[event], &lock, &until);
}

void
attn_signal(enum attn_event event)
{
    pthread_cond_signal(&events[event]);
}

int64_t
attn_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

#else
typedef int attn_not_posix; /* windows.c has it all */
#endif
