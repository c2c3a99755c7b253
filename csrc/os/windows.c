/*
 * windows.c -- threads.h and cpu_count.h from Windows.
 *
 * What has no twin there: no process forks, and no cleanup handlers run in a thread that
 * ends where it stands. So a thread that CPython before 3.14 ends in a question, while
 * its interpreter shuts down, takes its stack from under the workers' last tasks.
 */
#ifdef _WIN32

#include "threads.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include "cpu_count.h"

#define STACK_BYTES ((size_t)2 << 20) /* as in threads.c; Windows would give 1 MiB */

static int started;
static SRWLOCK lock = SRWLOCK_INIT;
static CONDITION_VARIABLE events[] = {CONDITION_VARIABLE_INIT, CONDITION_VARIABLE_INIT};

/* The CPUs this process may use, in the group of 64 that it began in. */
int
attn_cpu_count(void)
{
    DWORD_PTR allowed, all;
    bool known = GetProcessAffinityMask(GetCurrentProcess(), &allowed, &all);
    return known && allowed != 0 ? __builtin_popcountll(allowed) : 1;
}

static DWORD WINAPI
run(void *body)
{
    ((void *(*)(void *))body)(NULL);
    return 0;
}

int
attn_threads_start(int wanted, void *(*body)(void *))
{
    while (started < wanted) {
        HANDLE thread = CreateThread(NULL, STACK_BYTES, run, (void *)body,
                                     STACK_SIZE_PARAM_IS_A_RESERVATION, NULL);
        if (thread == NULL) {
            break;
        }
        CloseHandle(thread); /* it runs on */
        started++;
    }
    return started;
}

/* The system decides. */
bool
attn_threads_place(int helpers)
{
    return helpers < attn_cpu_count();
}

void
attn_threads_forget(void)
{
}

bool
attn_after_fork(void (*reset)(void))
{
    (void)reset;
    return true;
}

bool
attn_ask(bool (*question)(void *), void *arg, void (*give_up)(void *), void *call)
{
    (void)give_up, (void)call;
    return question(arg);
}

void
attn_lock(void)
{
    AcquireSRWLockExclusive(&lock);
}

void
attn_unlock(void)
{
    ReleaseSRWLockExclusive(&lock);
}

void
attn_wait(enum attn_event event, int64_t ns)
{
    DWORD ms = ns == ATTN_FOREVER ? INFINITE : (DWORD)(ns / 1000000);
    SleepConditionVariableSRW(&events[event], &lock, ms, 0);
}

void
attn_signal(enum attn_event event)
{
    WakeConditionVariable(&events[event]);
}

int64_t
attn_now_ns(void)
{
    LARGE_INTEGER ticks, second;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&second);
    return ticks.QuadPart / second.QuadPart * 1000000000 +
           ticks.QuadPart % second.QuadPart * 1000000000 / second.QuadPart;
}

#else
typedef int attn_not_windows; /* threads.c and cpu_count.c have it all */
#endif
