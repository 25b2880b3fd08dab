/* Who follows whom in a list of edges; shared by the walk and by the simulator's event loop. */
#ifndef RATRAIN_ADJACENCY_H
#define RATRAIN_ADJACENCY_H
#include <stdint.h>
#include <string.h>

/* Afterwards out[start[i]] .. out[start[i + 1] - 1] are the targets of source i. `start` has room
 * for n + 2 numbers, `out` for one more than there are edges. */
static void by_source(int64_t n, int64_t edges, const int64_t *source, const int64_t *target,
                      int64_t *start, int32_t *out) {
    memset(start, 0, sizeof(int64_t) * (size_t)(n + 2));
    for (int64_t e = 0; e < edges; e++) start[source[e] + 2]++;
    for (int64_t i = 2; i < n + 2; i++) start[i] += start[i - 1];
    for (int64_t e = 0; e < edges; e++) out[start[source[e] + 1]++] = (int32_t)target[e];
}

#endif
