/* Walks a program's waiting graph: what can run at all, and how far apart ops can drift.
 *
 * Nodes are ops of `steps` copies of one step: node = step * n + op. `inside` edges lie in each
 * copy, `across` edges lead from one copy to the next. Ops of one group (a send and its receive)
 * happen together. The Python twin of every function here stands in walk.py.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "adjacency.h"

typedef int64_t i64;
typedef int32_t i32;

/* Writes the nodes in an order in which they can run; returns how many can. -1: no memory. */
i64 ratrain_walk(i64 n, i64 steps, i64 e1, const i64 *s1, const i64 *t1, i64 e2, const i64 *s2,
                 const i64 *t2, i64 groups, const i64 *group, const i64 *group_size, i64 *order) {
    i64 total = n * steps, reached = 0, tail = 0;
    i64 *start1 = malloc(sizeof(i64) * (size_t)(n + 2)), *start2 = malloc(sizeof(i64) * (size_t)(n + 2));
    i32 *out1 = malloc(sizeof(i32) * (size_t)(e1 + 1)), *out2 = malloc(sizeof(i32) * (size_t)(e2 + 1));
    i32 *waits = calloc((size_t)total + 1, sizeof(i32));
    i32 *left = malloc(sizeof(i32) * (size_t)(groups * steps + 1));
    i64 *member = malloc(sizeof(i64) * (size_t)(groups * steps + 1)); /* last ready member */
    i64 *link = malloc(sizeof(i64) * (size_t)(total + 1));            /* ready members, chained */
    if (!start1 || !start2 || !out1 || !out2 || !waits || !left || !member || !link) {
        reached = -1;
        goto done;
    }
    by_source(n, e1, s1, t1, start1, out1);
    by_source(n, e2, s2, t2, start2, out2);
    for (i64 k = 0; k < steps; k++) {
        for (i64 e = 0; e < e1; e++) waits[k * n + t1[e]]++;
        if (k) for (i64 e = 0; e < e2; e++) waits[k * n + t2[e]]++;
        for (i64 g = 0; g < groups; g++) { left[k * groups + g] = (i32)group_size[g]; member[k * groups + g] = -1; }
    }
/* A node that waits for nothing more joins the order, with its whole group. */
#define READY(node) do { i64 v_ = (node), k_ = v_ / n, g_ = group[v_ - k_ * n]; \
        if (g_ < 0) order[tail++] = v_; \
        else { i64 q_ = k_ * groups + g_; link[v_] = member[q_]; member[q_] = v_; \
               if (--left[q_] == 0) for (i64 m_ = member[q_]; m_ >= 0; m_ = link[m_]) order[tail++] = m_; } \
    } while (0)
    for (i64 v = 0; v < total; v++) if (!waits[v]) READY(v);
    while (reached < tail) {
        i64 v = order[reached++], k = v / n, i = v - k * n;
        for (i64 p = start1[i]; p < start1[i + 1]; p++) { i64 w = k * n + out1[p]; if (!--waits[w]) READY(w); }
        if (k + 1 < steps)
            for (i64 p = start2[i]; p < start2[i + 1]; p++) { i64 w = (k + 1) * n + out2[p]; if (!--waits[w]) READY(w); }
    }
done:
    free(start1); free(start2); free(out1); free(out2); free(waits); free(left); free(member); free(link);
    return reached;
}

/* For up to WIDTH ranks at once: how many of each rank's compute ops must have ended before each
 * node can start (early), and the first of them that cannot start before the node has ended (late).
 * `owner` is the column of an op's rank if it is one of these ranks' compute ops, else -1; `place`
 * its place in that rank's compute lane; `length` the lanes'. early and late have WIDTH columns.
 * Nodes come in `order`; members of a group stand next to each other in it. Returns 0, or -1. */
enum { WIDTH = 16 };

i64 ratrain_drift_width(void) { return WIDTH; }

i64 ratrain_drift(i64 n, i64 steps, i64 e1, const i64 *s1, const i64 *t1, i64 e2, const i64 *s2,
                  const i64 *t2, const i64 *group, const i64 *order, const i64 *owner,
                  const i64 *place, const i64 *length, i32 *early, i32 *late) {
    i64 total = n * steps, result = -1;
    i64 *start[2] = {malloc(sizeof(i64) * (size_t)(n + 2)), malloc(sizeof(i64) * (size_t)(n + 2))};
    i32 *out[2] = {malloc(sizeof(i32) * (size_t)(e1 + 1)), malloc(sizeof(i32) * (size_t)(e2 + 1))};
    i32 bound[WIDTH], passed[WIDTH];
    if (!start[0] || !start[1] || !out[0] || !out[1]) goto done;
    by_source(n, e1, s1, t1, start[0], out[0]);
    by_source(n, e2, s2, t2, start[1], out[1]);
    memset(early, 0, sizeof(i32) * WIDTH * (size_t)total);
    for (i64 at = 0; at < total;) { /* forward: what a node waits for bounds it from below */
        i64 end = at, k = order[at] / n, g = group[order[at] % n];
        memcpy(bound, early + order[at] * WIDTH, sizeof bound);
        for (end++; end < total && g >= 0 && group[order[end] % n] == g && order[end] / n == k; end++) {
            const i32 *from = early + order[end] * WIDTH;
            for (int r = 0; r < WIDTH; r++) bound[r] = from[r] > bound[r] ? from[r] : bound[r];
        }
        for (; at < end; at++) {
            i64 i = order[at] - k * n;
            memcpy(early + order[at] * WIDTH, bound, sizeof bound);
            memcpy(passed, bound, sizeof bound);
            if (owner[i] >= 0) passed[owner[i]] = (i32)(k * length[owner[i]] + place[i] + 1);
            for (int across = 0; across <= 1 && k + across < steps; across++)
                for (i64 p = start[across][i]; p < start[across][i + 1]; p++) {
                    i32 *to = early + ((k + across) * n + out[across][p]) * WIDTH;
                    for (int r = 0; r < WIDTH; r++) to[r] = to[r] > passed[r] ? to[r] : passed[r];
                }
        }
    }
    for (i64 at = total; at > 0;) { /* backward: what waits for a node bounds it from above */
        i64 end = at, k = order[at - 1] / n, g = group[order[at - 1] % n];
        for (int r = 0; r < WIDTH; r++) bound[r] = (i32)(length[r] * steps);
        do {
            i64 i = order[--at] - k * n;
            for (int across = 0; across <= 1 && k + across < steps; across++)
                for (i64 p = start[across][i]; p < start[across][i + 1]; p++) {
                    i64 w = out[across][p], o = owner[w];
                    const i32 *from = late + ((k + across) * n + w) * WIDTH;
                    i32 own = o >= 0 ? bound[o] : 0;
                    for (int r = 0; r < WIDTH; r++) bound[r] = from[r] < bound[r] ? from[r] : bound[r];
                    if (o >= 0) { /* the rank's own op counts itself, not what waits for it */
                        i32 b = (i32)((k + across) * length[o] + place[w]);
                        bound[o] = b < own ? b : own;
                    }
                }
        } while (at > 0 && g >= 0 && group[order[at - 1] % n] == g && order[at - 1] / n == k);
        for (i64 q = at; q < end; q++) memcpy(late + order[q] * WIDTH, bound, sizeof bound);
    }
    result = 0;
done:
    free(start[0]); free(start[1]); free(out[0]); free(out[1]);
    return result;
}
