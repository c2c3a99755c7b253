/*
 * threads.c -- threads for the pool. See threads.h.
 *
 * Where they run. A woken thread may land on the CPU of the thread that woke it, and
 * wait there for the end of the very work it should share. So the workers get the CPUs
 * allowed to the caller without the one the caller is on.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* Linux: sched_getcpu, pthread_setaffinity_np */
#endif

#include "threads.h"

#include <sched.h>
#include <signal.h>
#include <stddef.h>

#include "cpu_count.h"

#define STACK_BYTES ((size_t)2 << 20) /* tasks use up to 256 KiB; musl would give 128 */

static bool placed; /* all threads, where they were told to run last */

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
attn_threads_start(pthread_t *threads, int have, int wanted, void *(*body)(void *))
{
    pthread_attr_t attr;
    sigset_t before;
    if (have >= wanted || pthread_attr_init(&attr) != 0) {
        return have;
    }
    placed = false;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    block_signals(&before);
    while (have < wanted && pthread_create(&threads[have], &attr, body, NULL) == 0) {
        have++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return have;
}

#ifdef __linux__

/* Costs 0.2 us, and 0.4 for each thread when the caller has moved. */
bool
attn_threads_place(const pthread_t *threads, int count, int helpers)
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
        for (int i = 0; i < count; i++) {
            pthread_setaffinity_np(threads[i], sizeof set, &set);
        }
        placed = true;
        last = set;
    }
    return roomy;
}

#else /* the system decides */

bool
attn_threads_place(const pthread_t *threads, int count, int helpers)
{
    (void)threads, (void)count, (void)placed;
    return helpers < attn_cpu_count();
}

#endif
