/*
 * test_parallel.c -- the pool: who runs which task when, and interrupts.
 *
 *     cc -std=c11 -pthread tests/c/test_parallel.c csrc/os/(all).c -lm
 *
 * Prints a line for each check; a failure aborts, a hang is ended by SIGALRM.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "parallel_checks.h"

#include <math.h>

/* ---- when there are threads ------------------------------------------------------ */

static void
check_serial(void)
{
    int before = threads_now();
    assert_each_once(1, MANY, PLENTY_US, true);
    assert_each_once(8, 1, PLENTY_US, true);
    assert_each_once(8, 0, PLENTY_US, true);
    assert_each_once(8, MANY, 49, true);
    assert_each_once(8, MANY, 0, true);
    assert_each_once(8, MANY, NAN, true);
    assert(threads_now() == before);
    printf("ok  little work, one task, one thread: in order, on the caller's thread, "
           "no thread started\n");
}

static void
check_lazy(void)
{
    int before = threads_now();
    assert_each_once(8, MANY, 60, false); /* 60 us feed two threads, not eight */
    assert(before == 0 || threads_now() == before + 1);
    assert_each_once(8, 3, PLENTY_US, false);
    assert(before == 0 || threads_now() == before + 2);
    assert_each_once(2, MANY, PLENTY_US, false);
    assert(before == 0 || threads_now() == before + 2);
    printf("ok  threads start when a call needs them, and only as many%s\n",
           before == 0 ? " (their number not checked on this system)" : "");
}

static void
check_each_once(void)
{
    static const int threads[] = {1, 2, 3, 5, 16};
    static const int64_t tasks[] = {0, 1, 2, 3, 17, MANY};
    for (int t = 0; t < 5; t++) {
        for (int n = 0; n < 6; n++) {
            assert_each_once(threads[t], tasks[n], PLENTY_US, false);
        }
    }
    printf("ok  every task once, worker numbers in range\n");
}

static void
check_most_threads(void)
{
    assert_meets(THREADS_MAX);
    int most = threads_now();
    assert_each_once(100000, MANY, INFINITY, false);
    assert(threads_now() == most);
    printf("ok  256 tasks at the same time, and no more threads than that\n");
}

static void
check_meetings(void)
{
    for (int i = 0; i < 20; i++) {
        assert_meets(2);
        assert_meets(5);
        sleep_us(i % 2 * 2000);
    }
    assert_meets(40);
    printf("ok  2, 5, 40 tasks at the same time, also after idling\n");
}

static void
check_stress(void)
{
    unsigned random = 1;
    for (int i = 0; i < 3000; i++) {
        random = random * 1664525 + 1013904223;
        assert_each_once(2 + (int)(random >> 30), 2 + (int64_t)(random >> 26 & 15),
                         PLENTY_US, false);
        if (random >> 25 & 1) {
            sleep_us((long)(random >> 17 & 255));
        }
    }
    printf("ok  3000 calls in a row with pauses of 0 to 255 us\n");
}

/* Pauses as long as a worker spins before it sleeps, 100 us: a wake-up lost between its
 * last look and its sleep would leave a meeting one short. One worker, so none can
 * stand in for it. */
static void
call_as_worker_falls_asleep(void)
{
    unsigned random = 1;
    for (int i = 0; i < 5000; i++) {
        assert_meets(2);
        random = random * 1664525 + 1013904223;
        double end = seconds() + 1e-6 * (95 + (random >> 24) / 20.0);
        while (seconds() < end) {
        }
    }
}

static void
check_wake_ups(void)
{
    in_child(call_as_worker_falls_asleep);
    printf("ok  5000 calls just when the worker falls asleep\n");
}

static void
use_deep_stack(void *ctx, int64_t task, int worker)
{
    volatile char bytes[900 * 1024];
    (void)ctx, (void)worker;
    for (size_t i = 0; i < sizeof bytes; i += 1024) {
        bytes[i] = (char)task;
    }
    assert(bytes[0] == (char)task);
}

static void
check_stack(void)
{
    attn_run run = {.threads = 3};
    assert(attn_parallel_for(&run, 50, PLENTY_US, use_deep_stack, NULL));
    printf("ok  900 KiB of stack in a task\n");
}

/* ---- nested and concurrent calls ------------------------------------------------- */

struct nest {
    pthread_t thread;
    int tasks;
};

static void
count_nested(void *ctx, int64_t task, int worker)
{
    struct nest *nest = ctx;
    assert(worker == 0 && task == nest->tasks);
    assert(pthread_equal(nest->thread, pthread_self()));
    nest->tasks++;
}

static void
call_nested(void *ctx, int64_t task, int worker)
{
    struct nest nest = {pthread_self(), 0};
    attn_run run = {.threads = 4};
    meet(ctx, task, worker);
    assert(attn_parallel_for(&run, 20, PLENTY_US, count_nested, &nest));
    assert(nest.tasks == 20);
}

static void
check_nested(void)
{
    struct meeting meeting = {.expected = 3};
    attn_run run = {.threads = 3};
    assert(attn_parallel_for(&run, 3, PLENTY_US, call_nested, &meeting));
    assert_meets(3);
    printf("ok  a call inside a task runs on the task's thread\n");
}

static void *
call_often(void *unused)
{
    for (int i = 0; i < 300; i++) {
        assert_each_once(3, 37, PLENTY_US, false);
    }
    return unused;
}

static void
check_concurrent(void)
{
    pthread_t callers[4];
    for (int i = 0; i < 4; i++) {
        assert(pthread_create(&callers[i], NULL, call_often, NULL) == 0);
    }
    for (int i = 0; i < 4; i++) {
        assert(pthread_join(callers[i], NULL) == 0);
    }
    assert_meets(3);
    printf("ok  300 calls each from 4 threads at once\n");
}

/* ---- interrupts ------------------------------------------------------------------ */

/* One call and its conversation: the answer is true from question `stop_at` on. */
struct talk {
    attn_run run;
    pthread_t caller;
    int asked, stop_at;
    double began, first_asked;
    struct meeting meeting;
    atomic_int tasks;
};

static bool
answer(void *arg)
{
    struct talk *talk = arg;
    assert(pthread_equal(talk->caller, pthread_self()));
    if (talk->asked++ == 0) {
        talk->first_asked = seconds();
    }
    return talk->asked >= talk->stop_at;
}

/* Makes the call; the result is false exactly if an answer was true, and questions are
 * 20 ms apart. */
static void
converse(struct talk *talk, int threads, int64_t tasks, attn_task *fn)
{
    talk->run = (attn_run){.threads = threads, .interrupted = answer, .arg = talk};
    talk->caller = pthread_self();
    talk->meeting.expected = threads;
    talk->began = seconds();
    bool done = attn_parallel_for(&talk->run, tasks, PLENTY_US, fn, talk);
    assert(done == (talk->asked < talk->stop_at));
    assert(talk->asked == 0 || talk->first_asked - talk->began >= 0.02);
    assert(talk->asked <= (seconds() - talk->began) / 0.02);
}

static void
take_a_ms(void *ctx, int64_t task, int worker)
{
    struct talk *talk = ctx;
    (void)task, (void)worker;
    sleep_us(1000);
    atomic_fetch_add(&talk->tasks, 1);
}

static void
check_interrupt_between_tasks(void)
{
    for (int threads = 1; threads <= 3; threads += 2) {
        struct talk none = {.stop_at = 1};
        converse(&none, threads, 5, take_a_ms);
        assert(none.asked == 0 && atomic_load(&none.tasks) == 5);

        struct talk never = {.stop_at = 1000000};
        converse(&never, threads, 200, take_a_ms);
        assert(never.asked >= 1 && atomic_load(&never.tasks) == 200);

        struct talk third = {.stop_at = 3};
        converse(&third, threads, 100000, take_a_ms);
        assert(third.asked == 3 && atomic_load(&third.tasks) < 50000);
    }
    printf("ok  interrupts are asked about on the caller's thread, every 20 ms at "
           "most, and leave out the remaining tasks\n");
}

/* Works until told to give up. */
static void
poll_until_stopped(void *ctx, int64_t task, int worker)
{
    struct talk *talk = ctx;
    double end = seconds() + HANG_SECONDS;
    meet(&talk->meeting, task, worker);
    while (!attn_stopped(&talk->run, worker)) {
        assert(seconds() < end);
    }
}

/* The same, but the caller is done at once and waits for the others. */
static void
leave_others_polling(void *ctx, int64_t task, int worker)
{
    struct talk *talk = ctx;
    if (worker == 0) {
        meet(&talk->meeting, task, worker);
    } else {
        poll_until_stopped(ctx, task, worker);
    }
}

static void
check_interrupt_within_tasks(void)
{
    for (int threads = 1; threads <= 3; threads++) {
        struct talk inside = {.stop_at = 2}, tail = {.stop_at = 2};
        converse(&inside, threads, threads, poll_until_stopped);
        assert(inside.asked == 2);
        if (threads > 1) {
            converse(&tail, threads, threads, leave_others_polling);
            assert(tail.asked == 2);
        }
    }
    printf("ok  interrupts reach long tasks, also while the caller waits for them\n");
}

static void
pass_a_ms(void *ctx, int64_t task, int worker)
{
    take_a_ms(ctx, task, worker);
    attn_stopped(&((struct talk *)ctx)->run, worker);
}

static void
nest_with_same_run(void *ctx, int64_t task, int worker)
{
    struct talk *talk = ctx;
    meet(&talk->meeting, task, worker);
    attn_parallel_for(&talk->run, 60, PLENTY_US, pass_a_ms, talk);
}

static void
check_interrupt_nested(void)
{
    struct talk talk = {.stop_at = 1000000};
    converse(&talk, 3, 3, nest_with_same_run);
    assert(talk.asked >= 1 && atomic_load(&talk.tasks) == 3 * 60);
    printf("ok  a call nested on a worker asks nothing there\n");
}

static atomic_int inside;

static bool
end_thread(void *arg)
{
    (void)arg;
    pthread_exit(NULL);
}

/* The second half of a task is all that a worker does after the caller is gone. */
static void
be_inside(void *ctx, int64_t task, int worker)
{
    struct talk *talk = ctx;
    atomic_fetch_add(&inside, 1);
    if (talk->stop_at == 0) {
        poll_until_stopped(ctx, task, worker);
    } else {
        leave_others_polling(ctx, task, worker);
    }
    sleep_us(2000);
    atomic_fetch_sub(&inside, worker != 0);
}

static void *
call_and_end(void *in_tail)
{
    struct talk talk = {.meeting.expected = 3, .stop_at = in_tail != NULL};
    talk.run = (attn_run){.threads = 3, .interrupted = end_thread};
    attn_parallel_for(&talk.run, 3, PLENTY_US, be_inside, &talk);
    assert(false);
}

static void
check_thread_ended_by_interrupt(void)
{
    for (int in_tail = 0; in_tail < 2; in_tail++) {
        pthread_t caller;
        atomic_store(&inside, 0);
        assert(pthread_create(&caller, NULL, call_and_end, in_tail ? &inside : NULL) ==
               0);
        assert(pthread_join(caller, NULL) == 0);
        assert(atomic_load(&inside) == 1); /* the caller, who is no more */
        assert_meets(3);
    }
    printf("ok  a question that ends the thread ends the call first\n");
}

int
main(void)
{
    begin();
    check_serial();
    check_lazy();
    check_each_once();
    check_meetings();
    check_stress();
    check_wake_ups();
    check_stack();
    check_nested();
    check_concurrent();
    check_interrupt_between_tasks();
    check_interrupt_within_tasks();
    check_interrupt_nested();
    check_thread_ended_by_interrupt();
    check_most_threads();
    printf("all checks passed\n");
    return 0;
}
