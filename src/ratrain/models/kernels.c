/* What a layer does between its products, fused: fp32 on one thread of a CPU.
 *
 * torch does each of these in 5 to 12 passes over memory, with some microseconds before each. Here
 * each is one pass. Sums have LANES partial sums, added up in a fixed order, and nothing is
 * contracted into fused multiply-adds (-ffp-contract=off): the bits do not depend on the width of
 * the processor's vectors. NaN and infinity stay what they are: a run that diverges must show it.
 */
#include <math.h>
#include <stdint.h>

/* One copy of a function for each width of vectors, chosen when the library is loaded. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(ONE_WIDTH)
#define EACH_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EACH_WIDTH
#endif
#define INLINE static inline __attribute__((always_inline))
#define LANES 16

/* e^x to about one unit in the last place; below e^-87 and above e^88 it stays what it is there.
 * x = n log 2 + r, then a polynomial in r (Cephes, expf). Adding 1.5 x 2^23 rounds to a whole
 * number. */
INLINE float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    union { int32_t bits; float value; } power = {((int32_t)n + 127) << 23};
    return p * power.value;
}

INLINE float sum_of(const float *partial) {
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += partial[lane];
    return sum;
}

/* out = x r w and r = 1 / sqrt(mean(x^2) + epsilon), one a row. */
EACH_WIDTH void rms_norm(int64_t rows, int64_t width, const float *restrict x,
                         const float *restrict weight, float epsilon, float *restrict out,
                         float *restrict rstd) {
    for (int64_t row = 0; row < rows; row++, x += width, out += width) {
        float partial[LANES] = {0};
        int64_t at = 0;
        for (; at + LANES <= width; at += LANES)
            for (int lane = 0; lane < LANES; lane++)
                partial[lane] += x[at + lane] * x[at + lane];
        float sum = sum_of(partial);
        for (; at < width; at++) sum += x[at] * x[at];
        float r = 1.0f / sqrtf(sum / (float)width + epsilon);
        rstd[row] = r;
        for (at = 0; at < width; at++) out[at] = x[at] * r * weight[at];
    }
}

/* dx = r (w g - x r^2 mean(w g x)), plus `residual` where that is given; dw = the sum over rows of
 * g x r. */
EACH_WIDTH void rms_norm_gradients(int64_t rows, int64_t width, const float *restrict grad,
                                   const float *restrict x, const float *restrict rstd,
                                   const float *restrict weight, const float *restrict residual,
                                   float *restrict dx, float *restrict dw) {
    for (int64_t at = 0; at < width; at++) dw[at] = 0;
    for (int64_t row = 0; row < rows; row++, grad += width, x += width, dx += width) {
        float r = rstd[row], partial[LANES] = {0};
        int64_t at = 0;
        for (; at + LANES <= width; at += LANES)
            for (int lane = 0; lane < LANES; lane++) {
                float product = x[at + lane] * r * grad[at + lane];
                dw[at + lane] += product;
                partial[lane] += product * weight[at + lane];
            }
        float sum = sum_of(partial);
        for (; at < width; at++) {
            float product = x[at] * r * grad[at];
            dw[at] += product;
            sum += product * weight[at];
        }
        float along = sum / (float)width * r * r;
        if (residual) {
            for (at = 0; at < width; at++)
                dx[at] = grad[at] * weight[at] * r - x[at] * along + residual[at];
            residual += width;
        } else {
            for (at = 0; at < width; at++) dx[at] = grad[at] * weight[at] * r - x[at] * along;
        }
    }
}

/* out = silu(gate) up. */
EACH_WIDTH void gated(int64_t count, const float *restrict gate, const float *restrict up,
                      float *restrict out) {
    for (int64_t at = 0; at < count; at++)
        out[at] = gate[at] / (1.0f + exponential(-gate[at])) * up[at];
}

/* The gradients of gate and up by that of silu(gate) up, written over gate and up. */
EACH_WIDTH void gated_gradients(int64_t count, const float *restrict grad, float *restrict gate,
                                float *restrict up) {
    for (int64_t at = 0; at < count; at++) {
        float sigmoid = 1.0f / (1.0f + exponential(-gate[at]));
        float silu = gate[at] * sigmoid, d_silu = grad[at] * up[at];
        up[at] = silu * grad[at];
        gate[at] = d_silu * sigmoid * (1.0f + gate[at] * (1.0f - sigmoid));
    }
}

/* Turns x [batch, length, heads, 2 half] in place: element i with i + half. */
EACH_WIDTH void rotate(int64_t batch, int64_t length, int64_t heads, int64_t half,
                       float *restrict x, const float *restrict cosines,
                       const float *restrict sines) {
    for (int64_t row = 0; row < batch * length; row++) {
        const float *c = cosines + row % length * half, *s = sines + row % length * half;
        for (int64_t head = 0; head < heads; head++, x += 2 * half)
            for (int64_t at = 0; at < half; at++) {
                float left = x[at], right = x[half + at];
                x[at] = left * c[at] - right * s[at];
                x[half + at] = right * c[at] + left * s[at];
            }
    }
}
