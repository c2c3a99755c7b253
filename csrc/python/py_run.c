/*
 * py_run.c -- one call into the core: how many threads, with or without the GIL, where
 * its scratch lies, and how Ctrl-C gets through.
 */
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
    const unsigned long runs = py_quiet_runs;
    r->raised = PyErr_CheckSignals() < 0;
    py_quiet_forget(runs);
    if (collects) {
        PyGC_Enable();
    }
    r->thread = PyEval_SaveThread();
    return r->raised;
}

/* Scratch for a frame. The core finds out itself whether it is enough; more, and all of a
 * call in which Python code may run on top, is on the heap: a signal handler may well make
 * such a call itself. */
enum { FRAME = 16 * 1024 - 192, NOTHING = 64 };

/* With scratch of so many bytes; 0: as many as it takes. A signal handler that forks leaves
 * the child without the workers and what they had taken: there the call stops, nothing
 * raised, and starts again. */
static int
run_with(released_run *r, void *scratch, size_t room, py_core_call *call,
         const void *context)
{
    const int threads = r->run.threads;
    r->run.room = room;
    int result = call(context, scratch, &r->run);
    while (result == ATTN_INTERRUPTED && !r->raised) {
        r->run = (attn_run){
            .threads = threads, .interrupted = interrupted, .arg = r, .room = room};
        result = call(context, scratch, &r->run);
    }
    return result;
}

/* With these bytes, or, if they are too few, others; ATTN_NO_ROOM: of r->run.room bytes
 * there are none. The GIL is not needed. */
static int
run_core(released_run *r, void *scratch, size_t room, py_core_call *call,
         const void *context)
{
    int result = run_with(r, scratch, room, call, context);
    const size_t bytes = r->run.room;
    void *heap = NULL;
    if (result == ATTN_NO_ROOM && bytes <= PY_SSIZE_T_MAX) {
        heap = py_take_scratch(bytes);
    }
    if (heap != NULL) {
        result = run_with(r, heap, 0, call, context);
        py_give_scratch(heap, bytes);
    }
    return result;
}

__attribute__((noinline)) static int
run_in_frame(released_run *r, py_core_call *call, const void *context)
{
    _Alignas(64) char scratch[FRAME];
    return run_core(r, scratch, FRAME, call, context);
}

PY_COLD int
py_refuse(size_t bytes, const char *what)
{
    if (bytes > PY_SSIZE_T_MAX) {
        return py_wrong("arrays_too_large", "(s)", what);
    }
    PyErr_NoMemory();
    return -1;
}

int
py_run(const attnext_state *state, double work, bool release, py_core_call *call,
       const void *context)
{
    _Alignas(64) char nothing[NOTHING];
    released_run r = {.run = {.threads = 1}};
    int result;
    if (work < WORTH_RELEASING) {
        result = run_in_frame(&r, call, context);
    } else {
        const int threads = state->threads;
        r.run.threads = Py_MIN(threads, MOST_THREADS);
        if (release) {
            r.run.interrupted = interrupted;
            r.run.arg = &r;
            r.thread = PyEval_SaveThread();
        }
        result = run_core(&r, nothing, NOTHING, call, context);
        if (release) {
            PyEval_RestoreThread(r.thread);
        }
    }
    return py_quiet_end(result == ATTN_NO_ROOM
                            ? py_refuse(r.run.room, "the results and buffers")
                            : result);
}
