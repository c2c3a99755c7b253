/*
 * py_run.c -- one call into the core: how many threads, with or without the GIL, where
 * its scratch lies, and how Ctrl-C gets through.
 */
#include "py_quiet.h"
#include "py_run.h"

/* Multiply-adds below which a call keeps the GIL and one thread. Getting the GIL back
 * can take longer than they do when other threads want it. */
static const double WORTH_RELEASING = 50e3;

/* More threads than this the pool does not have, and each would get scratch. */
enum { MOST_THREADS = 256 };

typedef struct {
    attn_run run;
    bool raised;           /* a signal handler raised, and the exception is set */
    PyThreadState *thread; /* set while the GIL is given up */
} released_run;

/* The core asks about every 20 ms, on the caller's thread, whether to stop. While the
 * interpreter shuts down, a daemon thread does not come back from here, or hangs
 * (CPython 3.14). */
static bool
interrupted(void *arg)
{
    released_run *r = arg;
    PyEval_RestoreThread(r->thread);
    int collects = PyGC_Disable(); /* or CPython 3.12 runs finalisers here */
    r->raised = py_quiet_but(PyErr_CheckSignals()) < 0;
    if (collects) {
        PyGC_Enable();
    }
    r->thread = PyEval_SaveThread();
    return r->raised;
}

/* Scratch of this size on the heap; ValueError or MemoryError. */
static void *
allocate(size_t bytes)
{
    if (bytes > PY_SSIZE_T_MAX) {
        py_wrong("arrays_too_large", "(s)", "this call needs");
        return NULL;
    }
    void *heap = py_take_scratch(bytes);
    if (heap == NULL) {
        PyErr_NoMemory();
    }
    return heap;
}

/* A frame for scratch of this size, where the core finds out itself whether it is enough;
 * more, and all of a call in which Python code may run on top, is on the heap: a signal
 * handler may well make such a call itself. */
enum { FRAME = 32 * 1024 };

/* ATTN_NO_ROOM: it takes so many bytes. */
__attribute__((noinline)) static int
run_in_frame(py_core_call *call, const void *context, size_t *bytes)
{
    _Alignas(64) char scratch[FRAME];
    attn_run run = {.threads = 1, .room = FRAME};
    int result = call(context, scratch, &run);
    *bytes = run.room;
    return result;
}

/* A signal handler that forks leaves the child without the workers and what they had
 * taken: there the call stops, nothing raised, and starts again. */
static int
run_released(py_core_call *call, const void *context, void *scratch, int threads)
{
    released_run r = {.raised = false, .thread = PyEval_SaveThread()};
    int result;
    do {
        r.run = (attn_run){.threads = threads, .interrupted = interrupted, .arg = &r};
        result = call(context, scratch, &r.run);
    } while (result != 0 && !r.raised);
    PyEval_RestoreThread(r.thread);
    return result;
}

static int
run_core(const attnext_state *state, bool worth, bool release, py_workspace *workspace,
         py_core_call *call, const void *context)
{
    const int threads = worth ? Py_MIN(state->threads, MOST_THREADS) : 1;
    size_t bytes = 0;
    if (!worth) {
        int result = run_in_frame(call, context, &bytes);
        if (result != ATTN_NO_ROOM) {
            return result;
        }
    } else if (workspace != NULL) {
        bytes = workspace(context, threads);
    }
    void *scratch = allocate(bytes);
    if (scratch == NULL) {
        return -1;
    }
    attn_run run = {.threads = threads};
    int result = release ? run_released(call, context, scratch, threads)
                         : call(context, scratch, &run);
    py_give_scratch(scratch, bytes);
    return result;
}

int
py_run(const attnext_state *state, double work, py_workspace *workspace,
       py_core_call *call, const void *context)
{
    const bool worth = work >= WORTH_RELEASING;
    return py_quiet_end(run_core(state, worth, worth, workspace, call, context));
}

int
py_run_alone(const attnext_state *state, double work, py_workspace *workspace,
             py_core_call *call, const void *context)
{
    return py_quiet_end(
        run_core(state, work >= WORTH_RELEASING, false, workspace, call, context));
}
