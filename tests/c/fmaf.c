/*
 * fmaf.c -- fmaf for C libraries whose own is wrong. That of Debian's emscripten (musl
 * 1.2.2) rounds every tie away from zero, also where what is behind it says towards zero:
 * (1 + 2^-12)^2 - 2^-149 becomes 0x1.002002p+0, exactly it is below 0x1.002001p+0.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

/* The exact product and Knuth's two-sum in double; the sum rounded to odd; then to float
 * (Boldo and Melquiond 2008). */
float
fmaf(float a, float b, float c)
{
    double product = (double)a * b, sum = product + c, of_c = sum - product;
    double rest = (product - (sum - of_c)) + (c - of_c);
    int64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    if (rest != 0.0 && isfinite(sum)) {
        bits -= (rest < 0.0) != (sum < 0.0);
        bits |= 1;
    }
    memcpy(&sum, &bits, sizeof bits);
    return (float)sum;
}
