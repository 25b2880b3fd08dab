/* The opcode's arithmetic on the lanes of one flit. Formats narrower than fp32 are computed in
 * double and rounded once to the format: the double has more than twice the digits plus two, so
 * the result is the correctly rounded one. min/max follow RISC-V: a number beats a NaN, -0 < +0.
 * Every NaN result is the format's canonical quiet NaN. */
#include "core.h"
#include <math.h>
#include <string.h>

enum { FP64, FP32, FP16, BF16, FP8, FP8ALT, INT64, INT32, INT16, INT8 };
static const int WIDTH[] = {8, 4, 2, 2, 1, 1, 8, 4, 2, 1};
static const int EXP_BITS[] = {11, 8, 5, 8, 5, 4};
static const int MAN_BITS[] = {52, 23, 10, 7, 2, 3};

static double decode(uint64_t bits, int eb, int mb) {
    int64_t exponent = (int64_t)(bits >> mb) & ((1 << eb) - 1), bias = (1 << (eb - 1)) - 1;
    uint64_t mantissa = bits & ((1ull << mb) - 1);
    double sign = (bits >> (eb + mb)) & 1 ? -1.0 : 1.0;
    if (exponent == (1 << eb) - 1) return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp((double)mantissa, (int)(1 - bias - mb));
    return sign * ldexp((double)(mantissa | (1ull << mb)), (int)(exponent - bias - mb));
}

static uint64_t encode(double value, int eb, int mb) {
    uint64_t top = (1ull << eb) - 1, sign = signbit(value) ? 1ull << (eb + mb) : 0;
    int bias = (1 << (eb - 1)) - 1, exponent;
    if (isnan(value)) return (top << mb) | (1ull << (mb - 1));
    if (isinf(value)) return sign | (top << mb);
    if (value == 0.0) return sign;
    frexp(value, &exponent);
    exponent -= 1; /* value = 1.xxx * 2^exponent */
    if (exponent < 1 - bias) exponent = 1 - bias;
    /* nearbyint rounds half to even; a carry runs into the exponent by itself. */
    uint64_t digits = (uint64_t)nearbyint(ldexp(fabs(value), mb - exponent));
    uint64_t bits = digits < (1ull << mb)
                        ? digits
                        : ((uint64_t)(exponent + bias - 1) << mb) + digits;
    return bits >= (top << mb) ? sign | (top << mb) : sign | bits;
}

static double lesser(double a, double b, int want_max) {
    if (isnan(a)) return b;
    if (isnan(b)) return a;
    if (a == b) return (signbit(a) != 0) == (want_max != 0) ? b : a;
    return (a < b) == !want_max ? a : b;
}

static uint64_t combine_float(int64_t op, int f, uint64_t a, uint64_t b) {
    if (f == FP32 && (op == FP_ADD || op == FP_MUL)) {
        uint32_t ia = (uint32_t)a, ib = (uint32_t)b, bits;
        float x, y, z;
        memcpy(&x, &ia, 4);
        memcpy(&y, &ib, 4);
        z = op == FP_ADD ? x + y : x * y;
        memcpy(&bits, &z, 4);
        return isnan(z) ? 0x7fc00000u : bits;
    }
    double x, y, z;
    if (f == FP64) {
        memcpy(&x, &a, 8);
        memcpy(&y, &b, 8);
    } else {
        x = decode(a, EXP_BITS[f], MAN_BITS[f]);
        y = decode(b, EXP_BITS[f], MAN_BITS[f]);
    }
    switch (op) {
    case FP_ADD: z = x + y; break;
    case FP_MUL: z = x * y; break;
    default: z = lesser(x, y, op == FP_MAX); break;
    }
    if (f != FP64) return encode(z, EXP_BITS[f], MAN_BITS[f]);
    uint64_t bits;
    memcpy(&bits, &z, 8);
    return isnan(z) ? 0x7ff8000000000000ull : bits;
}

static uint64_t combine_int(int64_t op, int width, uint64_t a, uint64_t b) {
    int shift = 64 - 8 * width;
    int64_t sa = (int64_t)(a << shift) >> shift, sb = (int64_t)(b << shift) >> shift;
    switch (op) {
    case INT_ADD: case FP_ADD: return a + b;
    case INT_MUL: case FP_MUL: return a * b;
    case INT_MIN_S: case FP_MIN: return sa < sb ? a : b;
    case INT_MAX_S: case FP_MAX: return sa > sb ? a : b;
    case INT_MIN_U: return a < b ? a : b;
    default: return a > b ? a : b;
    }
}

/* Writes op(into, other) to `into`, lane by lane. Operand a is `into`. */
void noc_combine(int64_t op, int64_t format, uint8_t *into, const uint8_t *other, int64_t bytes) {
    if (op == LSB_AND) { /* the other bits are those of the lowest input */
        into[0] = (uint8_t)((into[0] & ~1) | (into[0] & other[0] & 1));
        return;
    }
    if (op == COLLECT_B) { /* AXI response: an error wins over OKAY */
        if (into[0] == 0) into[0] = other[0];
        return;
    }
    int width = WIDTH[format];
    for (int64_t i = 0; i + width <= bytes; i += width) {
        uint64_t a = 0, b = 0, z;
        memcpy(&a, into + i, (size_t)width);
        memcpy(&b, other + i, (size_t)width);
        z = format >= INT64 ? combine_int(op, width, a, b) : combine_float(op, (int)format, a, b);
        memcpy(into + i, &z, (size_t)width);
    }
}
