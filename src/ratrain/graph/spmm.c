/* out[rows[i]] += sum of values[e] * in[columns[e]] over the entries e of compressed row i, of rows
   `first` to `last`. `in` and `out` are rows of `in_step` and `out_step` numbers, of which `width`
   are summed. */
#include <stdint.h>

#define SPMM(NAME, REAL)                                                                           \
    void NAME(int64_t first, int64_t last, const int32_t *rows, const int32_t *starts,             \
              const int32_t *columns, const REAL *values, const REAL *in, int64_t in_step,         \
              REAL *out, int64_t out_step, int64_t width) {                                        \
        for (int64_t i = first; i < last; i++) {                                                   \
            REAL *restrict sum = out + (int64_t)rows[i] * out_step;                                \
            for (int32_t e = starts[i]; e < starts[i + 1]; e++) {                                  \
                const REAL value = values[e];                                                      \
                const REAL *restrict row = in + (int64_t)columns[e] * in_step;                     \
                for (int64_t k = 0; k < width; k++)                                                \
                    sum[k] += value * row[k];                                                      \
            }                                                                                      \
        }                                                                                          \
    }

SPMM(ratrain_spmm_float32, float)
SPMM(ratrain_spmm_float64, double)
