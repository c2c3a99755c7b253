/*
 * questions.c -- preloaded, so that a signal comes in the middle of a call on every machine.
 *
 *     cc -std=c11 -shared -fPIC tests/c/questions.c -o questions.so
 *     LD_PRELOAD=questions.so python ...
 *
 * A call asks every 20 ms whether to stop, and reads the clock to know when. Here each look
 * of a thread at the clock takes it 20 ms further, once it has called questions_begin: so a
 * call asks wherever it may, at any speed of the CPU. At one of these looks it is sent a
 * signal. See tests/questions.py.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { STEP_NS = 20000000, SECOND_NS = 1000000000 };

static _Thread_local int64_t ahead; /* of the real time; never less than before */
static _Thread_local int64_t looks, signal_at;
static _Thread_local _Bool counting;

/* From now on the clock jumps. SIGALRM is sent at this look, counted from 1; 0: never. */
void
questions_begin(int64_t at)
{
    looks = 0;
    signal_at = at;
    counting = 1;
}

/* How often this thread looked since; the clock runs as it does elsewhere. */
int64_t
questions_end(void)
{
    counting = 0;
    return looks;
}

int
clock_gettime(clockid_t clock, struct timespec *t)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, t);
    if (failed || clock != CLOCK_MONOTONIC) {
        return failed;
    }
    if (counting) {
        ahead += STEP_NS;
        looks++;
        if (looks == signal_at) {
            raise(SIGALRM);
        }
    }
    int64_t ns = t->tv_nsec + ahead % SECOND_NS;
    t->tv_sec += ahead / SECOND_NS + ns / SECOND_NS;
    t->tv_nsec = ns % SECOND_NS;
    return 0;
}
