/*
 * serial.c -- what takes the place of csrc/os and of dispatch.c in a page: one thread,
 * which nobody interrupts, and the one instruction set that the module is compiled for.
 */
#include "../os/parallel.h"
#include "../simd/kernels.h"

const attn_kernels *attn_simd = &attn_kernels_wasm;

bool
attn_parallel_for(attn_run *run, int64_t tasks, double work_us, attn_task *fn,
                  void *ctx)
{
    (void)run;
    (void)work_us;
    for (int64_t task = 0; task < tasks; task++) {
        fn(ctx, task, 0);
    }
    return true;
}

bool
attn_stopped(attn_run *run, int worker)
{
    (void)run;
    (void)worker;
    return false;
}
