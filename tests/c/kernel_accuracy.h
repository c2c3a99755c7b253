/*
 * kernel_accuracy.h -- exp, tanh and softcap of every instruction set against libm in double
 * precision: the largest errors in units in the last place, and what special numbers become.
 */
#ifndef KERNEL_ACCURACY_H
#define KERNEL_ACCURACY_H

#include "../../csrc/simd/dispatch.h"
#include "../../csrc/simd/kernels.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { SETS = 4 };

static const attn_kernels *
set_named(const char *name)
{
    attn_cpu_select(name);
    return attn_simd;
}

enum { BLOCK = 1024 };
static const int64_t ALL_FLOATS = INT64_C(1) << 32;

/* A unit in the last place of the float that is nearest. */
static double
unit_of(double exact)
{
    int exponent;
    frexp(exact, &exponent);
    exponent = exponent > -125 ? exponent : -125;
    return ldexp(1.0, exponent - 24);
}

static void
exp2_of(const attn_kernels *k, float *out, const float *x, int64_t n)
{
    memcpy(out, x, (size_t)n * sizeof *x);
    const float origin = 0.0f, factor = 1.0f;
    k->prob_tile(out, 1, (int)n, &origin, &factor, NULL);
}

static void
exp_of(const attn_kernels *k, float *out, const float *x, int64_t n)
{
    float half[BLOCK];
    for (int64_t i = 0; i < n; i++) {
        half[i] = 0.5f * x[i]; /* exact: no subnormals come here */
    }
    k->exp_form(out, half, n);
}

static void
tanh_of(const attn_kernels *k, float *out, const float *x, int64_t n)
{
    k->tanh_form(out, x, n);
}

/* Under a cap of 3, whose inverse is rounded; the slope of one of 1, whose is not. */
static void
softcap_of(const attn_kernels *k, float *out, const float *x, int64_t n)
{
    memcpy(out, x, (size_t)n * sizeof *x);
    k->softcap(out, NULL, n, 3.0f, 1.0f / 3.0f);
}

static double
softcap(double x)
{
    return 3.0 * tanh(x / 3.0);
}

static void
slope_of(const attn_kernels *k, float *out, const float *x, int64_t n)
{
    float under_cap[BLOCK];
    memcpy(under_cap, x, (size_t)n * sizeof *x);
    k->softcap(under_cap, out, n, 1.0f, 1.0f);
}

static double
slope(double x)
{
    return 1.0 / (cosh(x) * cosh(x));
}

static const struct {
    const char *name;
    void (*of)(const attn_kernels *k, float *out, const float *x, int64_t n);
    double (*exact)(double x);
    float low, high;
} functions[] = {
    {"exp2", exp2_of, exp2, -126.0f, 127.0f},
    {"exp", exp_of, exp, -87.3f, 87.0f},
    {"exp_near", exp_of, exp, -2.0f, 2.0f},
    {"tanh", tanh_of, tanh, -100.0f, 100.0f},
    {"softcap", softcap_of, softcap, -FLT_MAX, FLT_MAX},
    {"slope", slope_of, slope, -43.5f, 43.5f},
};

/* The largest error of a function, in units in the last place, and where it is. */
typedef struct {
    double error;
    float at;
} worst;

static void
add_errors(worst *of, const float *x, const float *y, const double *exact,
           const double *unit, int n)
{
    for (int i = 0; i < n; i++) {
        double error = fabs((double)y[i] - exact[i]) / unit[i];
        if (error > of->error) {
            *of = (worst){error, x[i]};
        }
    }
}

/* libm is asked once for all sets, as it takes longest; and where a set has the bits of the first, it
 * has its errors. */
static void
measure_block(int f, const char *const names[], int count, const float *x, int n,
              worst of[])
{
    double exact[BLOCK], unit[BLOCK];
    float y[BLOCK], first[BLOCK];
    worst here[SETS] = {{0.0, 0.0f}};
    size_t bytes = (size_t)n * sizeof *x;
    for (int i = 0; i < n; i++) {
        exact[i] = functions[f].exact((double)x[i]);
        unit[i] = unit_of(exact[i]);
    }
    for (int s = 0; s < count; s++) {
        functions[f].of(set_named(names[s]), y, x, n);
        if (s > 0 && memcmp(y, first, bytes) == 0) {
            here[s] = here[0];
        } else {
            add_errors(&here[s], x, y, exact, unit, n);
        }
        if (s == 0) {
            memcpy(first, y, bytes);
        }
        of[s] = here[s].error > of[s].error ? here[s] : of[s];
    }
}

/* Prints the largest error of one function on each set, over one float in so many. */
static void
measure(int f, const char *const names[], int count, int64_t step)
{
    float x[BLOCK];
    worst of[SETS] = {{0.0, 0.0f}};
    int n = 0;
    for (int64_t bits = 0; bits < ALL_FLOATS; bits += step) {
        uint32_t word = (uint32_t)bits;
        memcpy(&x[n], &word, sizeof word);
        n += x[n] >= functions[f].low && x[n] <= functions[f].high &&
             fabsf(x[n]) > FLT_MIN;
        if (n == BLOCK || (n > 0 && bits + step >= ALL_FLOATS)) {
            measure_block(f, names, count, x, n, of);
            n = 0;
        }
    }
    for (int s = 0; s < count; s++) {
        printf("%s %s %.3f %a\n", names[s], functions[f].name, of[s].error,
               (double)of[s].at);
    }
}

/* Prints what the functions make of special numbers. */
static void
specials(const attn_kernels *k)
{
    const float t[] = {-INFINITY, -200.0f, -126.00001f, -126.0f, 0.0f,
                       127.0f,    128.0f,  INFINITY,    NAN};
    const float x[] = {-INFINITY, -20.0f, -1e-41f,  -0.0f, 0.0f,
                       1e-41f,    20.0f,  INFINITY, NAN};
    enum { N = sizeof t / sizeof *t };
    float y[N];
    exp2_of(k, y, t, N);
    printf("%s exp2_special", k->name);
    for (int i = 0; i < N; i++) {
        printf(" %a", (double)y[i]);
    }
    tanh_of(k, y, x, N);
    printf("\n%s tanh_special", k->name);
    for (int i = 0; i < N; i++) {
        printf(" %a", (double)y[i]);
    }
    printf("\n");
}

static void
accuracy(int64_t floats)
{
    const char *names[SETS];
    int count = attn_cpu_available(names, SETS);
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
        measure((int)f, names, count, ALL_FLOATS / floats);
    }
    for (int s = 0; s < count; s++) {
        specials(set_named(names[s]));
    }
}

#endif
