/*
 * test_parallel_process.c -- the pool in its process: memory, signals, floating point,
 * CPUs, fork and exit. Built and run like test_parallel.c. With the argument "cpus" it
 * prints attn_cpu_count() and nothing else.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* Linux: affinity */
#endif

#include "parallel_checks.h"

#include <fenv.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* ---- threads that cannot be had -------------------------------------------------- */

#if defined(__linux__) && !TSAN && !ASAN

static size_t
address_space(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert(file != NULL && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void
ask_for_eight(size_t room, int expected_more)
{
    int before = threads_now();
    struct rlimit limit;
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = address_space() + room;
    assert(setrlimit(RLIMIT_AS, &limit) == 0);
    assert_each_once(8, MANY, PLENTY_US, false);
    limit.rlim_cur = limit.rlim_max;
    assert(setrlimit(RLIMIT_AS, &limit) == 0);
    assert(threads_now() == before + expected_more);
}

static void
run_short_of_memory(void)
{
    ask_for_eight(0, 0);
    ask_for_eight((size_t)3 << 20, 1); /* one stack of 2 MiB fits, two do not */
    assert_meets(8);
}

static void
check_no_memory(void)
{
    in_child(run_short_of_memory);
    printf("ok  no memory for threads: fewer or none, the same work done\n");
}

#else

static void
check_no_memory(void)
{
    printf("--  a lack of memory for threads cannot be had in this build\n");
}

#endif

/* ---- what workers inherit -------------------------------------------------------- */

static atomic_int signals_seen;

static void
see_signal(int number)
{
    (void)number;
    atomic_fetch_add(&signals_seen, 1);
}

static void
check_signals(void)
{
    struct sigaction action = {.sa_handler = see_signal};
    sigset_t usr1, before, after, pending;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    assert(sigaction(SIGUSR1, &action, NULL) == 0);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    assert_meets(3); /* starts threads, with all signals blocked for that time */
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int number = 1; number < 32; number++) {
        assert(sigismember(&before, number) == sigismember(&after, number));
    }
    pthread_sigmask(SIG_BLOCK, &usr1, NULL); /* so a worker would take it */
    kill(getpid(), SIGUSR1);
    assert_meets(3);
    sleep_us(2000);
    sigpending(&pending);
    assert(atomic_load(&signals_seen) == 0 && sigismember(&pending, SIGUSR1));
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    assert(atomic_load(&signals_seen) == 1);
    printf("ok  signals stay with the threads of the program\n");
}

static void
leave_with_zero(int number)
{
    (void)number;
    _exit(0);
}

static void
crash_on_worker(void *ctx, int64_t task, int worker)
{
    meet(ctx, task, worker);
    if (worker != 0) {
        raise(SIGSEGV);
    }
}

static void
crash(void)
{
    struct sigaction action = {.sa_handler = leave_with_zero};
    struct meeting meeting = {.expected = 2};
    attn_run run = {.threads = 2};
    sigaction(SIGSEGV, &action, NULL);
    attn_parallel_for(&run, 2, PLENTY_US, crash_on_worker, &meeting);
    _exit(1);
}

struct modes {
    struct meeting meeting;
    atomic_int rounding[3];
};

static void
note_rounding(void *ctx, int64_t task, int worker)
{
    struct modes *modes = ctx;
    meet(&modes->meeting, task, worker);
    atomic_store(&modes->rounding[worker], fegetround());
}

static void
check_float_mode(void)
{
    static const int wanted[] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TONEAREST};
    for (int i = 0; i < 4; i++) {
        struct modes modes = {.meeting.expected = 3};
        attn_run run = {.threads = 3};
        fesetround(wanted[i]);
        assert(attn_parallel_for(&run, 3, PLENTY_US, note_rounding, &modes));
        assert(fegetround() == wanted[i]);
        for (int worker = 0; worker < 3; worker++) {
            assert(atomic_load(&modes.rounding[worker]) == wanted[i]);
        }
    }
    printf("ok  workers compute in the caller's floating-point mode\n");
}

/* ---- where workers run ----------------------------------------------------------- */

#ifdef __linux__

struct places {
    struct meeting meeting;
    cpu_set_t allowed[3];
};

static void
note_place(void *ctx, int64_t task, int worker)
{
    struct places *places = ctx;
    meet(&places->meeting, task, worker);
    sched_getaffinity(0, sizeof(cpu_set_t), &places->allowed[worker]);
}

/* Whether the workers of a call were off the caller's CPU (or anywhere, if they do not
 * fit beside it). They never leave the CPUs the caller may use, nor does it lose
 * any. */
static bool
well_placed(int threads)
{
    cpu_set_t mine, after, expected;
    struct places places = {.meeting.expected = threads};
    attn_run run = {.threads = threads};
    sched_getaffinity(0, sizeof mine, &mine);
    expected = mine;
    if (threads <= CPU_COUNT(&mine)) {
        CPU_CLR(sched_getcpu(), &expected);
    }
    assert(attn_parallel_for(&run, threads, PLENTY_US, note_place, &places));
    sched_getaffinity(0, sizeof after, &after);
    assert(CPU_EQUAL(&after, &mine));
    bool well = true;
    for (int worker = 1; worker < threads; worker++) {
        cpu_set_t within;
        CPU_AND(&within, &places.allowed[worker], &mine);
        assert(CPU_EQUAL(&within, &places.allowed[worker]));
        well = well && CPU_EQUAL(&places.allowed[worker], &expected);
    }
    return well;
}

/* The system may move the caller between our look and the pool's: look again. */
static void
assert_well_placed(int threads)
{
    int attempts = 0;
    while (!well_placed(threads)) {
        assert(++attempts < 20);
    }
}

static void
check_places(void)
{
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &all)) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            assert(sched_setaffinity(0, sizeof one, &one) == 0);
            assert_well_placed(2);
            assert(attn_cpu_count() == 1);
            assert(sched_setaffinity(0, sizeof all, &all) == 0);
            assert_well_placed(2); /* still on that CPU, now among others */
            assert_well_placed(3);
        }
    }
    int count = attn_cpu_count();
    assert(1 <= count && count <= CPU_COUNT(&all));
    printf("ok  workers keep to the caller's CPUs, and off its own where they fit\n");
}

#else

static void
check_places(void)
{
    assert(attn_cpu_count() >= 1);
    printf("--  where workers run is left to this system\n");
}

#endif

/* ---- fork and exit --------------------------------------------------------------- */

static void
use_pool(void)
{
    assert_meets(3);
    assert_each_once(3, MANY, PLENTY_US, false);
}

static void
use_pool_and_fork(void)
{
    use_pool();
    in_child(use_pool);
    use_pool();
}

static atomic_bool may_end, has_begun;

static void
wait_for_end(void *ctx, int64_t task, int worker)
{
    (void)ctx, (void)task, (void)worker;
    atomic_store(&has_begun, true);
    while (!atomic_load(&may_end)) {
        sleep_us(100);
    }
}

static void *
hold_pool(void *unused)
{
    attn_run run = {.threads = 2};
    assert(attn_parallel_for(&run, 2, PLENTY_US, wait_for_end, NULL));
    return unused;
}

static pthread_t
start_holding_pool(void)
{
    pthread_t thread;
    atomic_store(&may_end, false);
    atomic_store(&has_begun, false);
    assert(pthread_create(&thread, NULL, hold_pool, NULL) == 0);
    while (!atomic_load(&has_begun)) {
        sleep_us(100);
    }
    return thread;
}

static void
check_fork(void)
{
    use_pool();
    in_child(use_pool);
    in_child(use_pool_and_fork);
    sleep_us(2000);
    in_child(use_pool);
    pthread_t holder = start_holding_pool();
    in_child(use_pool);
    atomic_store(&may_end, true);
    pthread_join(holder, NULL);
    use_pool();
    printf("ok  fork: the child has a pool of its own, also if another thread was "
           "using the parent's\n");
}

static pid_t forked;

static bool
answer_by_forking(void *arg)
{
    (void)arg;
    if (forked == -1) {
        fflush(stdout);
        forked = fork();
        if (forked == 0) {
            alarm(HANG_SECONDS);
            use_pool();
        }
    }
    return false;
}

static void
take_50_ms(void *ctx, int64_t task, int worker)
{
    double end = seconds() + 0.05;
    (void)task;
    while (seconds() < end) {
        attn_stopped(ctx, worker);
    }
}

static void
check_fork_in_interrupt(void)
{
    int status;
    attn_run run = {.threads = 2, .interrupted = answer_by_forking};
    forked = -1;
    bool done = attn_parallel_for(&run, 4, PLENTY_US, take_50_ms, &run);
    if (forked == 0) {
        use_pool();
        _exit(done ? 1 : 0); /* tasks were lost, so the child must not see success */
    }
    assert(done && waitpid(forked, &status, 0) == forked);
    assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    printf("ok  fork while asked about an interrupt: stopped there, done here\n");
}

static void
exit_asleep(void)
{
    use_pool();
    sleep_us(2000);
    exit(0);
}

static void
exit_spinning(void)
{
    use_pool();
    exit(0);
}

static void
exit_and_use_pool(void)
{
    assert(atexit(use_pool) == 0);
    use_pool();
    sleep_us(2000);
    exit(0);
}

static void
exit_and_start_pool(void)
{
    assert(atexit(use_pool) == 0);
    exit(0);
}

static void
exit_in_use(void)
{
    start_holding_pool();
    exit(0);
}

static void
check_exit(void)
{
    in_child(exit_asleep);
    in_child(exit_spinning);
    in_child(exit_and_use_pool);
    in_child(exit_and_start_pool);
    in_child(exit_in_use);
    in_child(crash);
    printf("ok  exit: pool asleep, spinning, in use, used or started by atexit(); a "
           "crash on a worker reaches its handler\n");
}

int
main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "cpus") == 0) {
        printf("%d\n", attn_cpu_count());
        return 0;
    }
    begin();
    check_no_memory(); /* before any stack can be used again */
    check_signals();
    check_float_mode();
    check_places();
    check_fork();
    check_fork_in_interrupt();
    check_exit();
    printf("all checks passed\n");
    return 0;
}
