/* The event loop of the simulator: runs `steps` copies of a program's step on a clock.
 *
 * Total order of events: (time, sequence). The Python twin stands in engine.py and gives the very
 * same times: compiled with -ffp-contract=off, every sum is taken in the same order.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../program/adjacency.h"

typedef int64_t i64;
typedef int32_t i32;

typedef struct { double time; i64 seq; i64 node; i32 stamp; i32 what; } Event;
enum { FLOW_ENDS = 0, OP_ENDS = 1 };

typedef struct {
    i64 n, steps, total;
    const double *fixed, *interrupt, *volume, *rate;
    const i32 *link_a, *link_b, *compute_rank, *rank;
    const i64 *born, *freed;
    double *start, *end;
    i64 *start_seq, *end_seq, *cause, *memory, *peak, *peak_seq;
    Event *heap; i64 heap_size, heap_room;
    double *debt, *idle; /* idle: since when debt is worked off; negative while a compute op runs */
    i64 seq, history;
    /* flows: a transfer that is under way, in the list of each of its two links. An op ends in one
     * step before it begins in the next, so there is one flow of each op: flow_node says which. */
    double *left, *speed, *since; i32 *stamp;
    i64 *flow_node, *next_a, *next_b, *prev_a, *prev_b, *first; i32 *count;
    double now; int failed;
} Sim;

static int before(const Event *a, const Event *b) {
    return a->time < b->time || (a->time == b->time && a->seq < b->seq);
}

static void push(Sim *s, double time, i64 node, i32 stamp, i32 what) {
    if (s->heap_size == s->heap_room) {
        i64 room = s->heap_room * 2;
        Event *bigger = realloc(s->heap, sizeof(Event) * (size_t)room);
        if (!bigger) { s->failed = 1; return; }
        s->heap = bigger; s->heap_room = room;
    }
    Event e = {time, s->seq++, node, stamp, what};
    i64 i = s->heap_size++;
    while (i > 0) {
        i64 up = (i - 1) / 2;
        if (!before(&e, &s->heap[up])) break;
        s->heap[i] = s->heap[up]; i = up;
    }
    s->heap[i] = e;
}

static Event pop(Sim *s) {
    Event top = s->heap[0], last = s->heap[--s->heap_size];
    i64 i = 0, n = s->heap_size;
    for (;;) {
        i64 child = 2 * i + 1;
        if (child >= n) break;
        if (child + 1 < n && before(&s->heap[child + 1], &s->heap[child])) child++;
        if (!before(&s->heap[child], &last)) break;
        s->heap[i] = s->heap[child]; i = child;
    }
    s->heap[i] = last;
    return top;
}

/* A link's list holds a flow either by its a-side or by its b-side: entry = op * 2 + side. */
static i64 *next_of(Sim *s, i64 entry) { return entry & 1 ? &s->next_b[entry >> 1] : &s->next_a[entry >> 1]; }
static i64 *prev_of(Sim *s, i64 entry) { return entry & 1 ? &s->prev_b[entry >> 1] : &s->prev_a[entry >> 1]; }

static void join(Sim *s, i32 link, i64 entry) {
    i64 head = s->first[link];
    *next_of(s, entry) = head; *prev_of(s, entry) = -1;
    if (head >= 0) *prev_of(s, head) = entry;
    s->first[link] = entry; s->count[link]++;
}

static void leave(Sim *s, i32 link, i64 entry) {
    i64 n = *next_of(s, entry), p = *prev_of(s, entry);
    if (p >= 0) *next_of(s, p) = n; else s->first[link] = n;
    if (n >= 0) *prev_of(s, n) = p;
    s->count[link]--;
}

/* A flow's share: each link divides its rate evenly; the narrower share counts. */
static double share(Sim *s, i64 op) {
    i32 a = s->link_a[op], b = s->link_b[op];
    double speed = s->rate[a] / s->count[a];
    if (b >= 0) { double other = s->rate[b] / s->count[b]; if (other < speed) speed = other; }
    return speed;
}

/* The flows of a link change pace: settle what has passed, say anew when each will end. */
static void repace(Sim *s, i32 link) {
    for (i64 entry = s->first[link]; entry >= 0; entry = *next_of(s, entry)) {
        i64 op = entry >> 1; double speed = share(s, op);
        if (speed == s->speed[op]) continue;
        s->left[op] -= s->speed[op] * (s->now - s->since[op]);
        if (s->left[op] < 0) s->left[op] = 0;
        s->since[op] = s->now; s->speed[op] = speed;
        push(s, s->now + s->left[op] / speed, s->flow_node[op], ++s->stamp[op], FLOW_ENDS);
    }
}

/* While no compute op runs, a rank works off the driving that it owes. */
static void work_off(Sim *s, i32 r) {
    if (s->idle[r] < 0) return;
    if (s->debt[r] > 0) {
        s->debt[r] -= s->now - s->idle[r];
        if (s->debt[r] < 0) s->debt[r] = 0;
    }
    s->idle[r] = s->now;
}

static void begin(Sim *s, i64 node) {
    i64 op = node % s->n;
    i32 r = s->rank[op];
    s->start[node] = s->now; s->start_seq[node] = s->history++;
    s->memory[r] += s->born[op];
    if (s->memory[r] > s->peak[r]) { s->peak[r] = s->memory[r]; s->peak_seq[r] = s->start_seq[node]; }
    work_off(s, r);
    s->debt[r] += s->interrupt[op];
    if (s->compute_rank[op] >= 0) s->idle[r] = -1;
    if (s->volume[op] > 0) {
        i32 a = s->link_a[op], b = s->link_b[op];
        s->left[op] = s->volume[op]; s->since[op] = s->now; s->speed[op] = 0;
        s->flow_node[op] = node;
        join(s, a, op * 2);
        if (b >= 0) join(s, b, op * 2 + 1);
        repace(s, a);
        if (b >= 0) repace(s, b);
        return;
    }
    push(s, s->now + s->fixed[op], node, 0, OP_ENDS);
}

/* Returns how many ops ran (all of them, if the program is sound), or -1 without memory.
 * group members begin together and, having equal costs, end together: only the first of a group
 * carries its volume; the others wait for it. */
i64 ratrain_simulate(
    i64 n, i64 steps, i64 e1, const i64 *s1, const i64 *t1, i64 e2, const i64 *s2, const i64 *t2,
    i64 groups, const i64 *group, const i64 *group_size, i64 ranks, i64 links,
    const double *fixed, const double *interrupt, const double *volume, const i32 *link_a,
    const i32 *link_b, const double *rate, const i32 *compute_rank, const i32 *rank,
    const i64 *born, const i64 *freed, i64 *memory, double *start, double *end, i64 *start_seq,
    i64 *end_seq, i64 *cause, i64 *peak, i64 *peak_seq, volatile i64 *progress) {
    i64 total = n * steps, ran = 0, result = -1;
    Sim sim = {0}, *s = &sim;
    s->n = n; s->steps = steps; s->total = total;
    s->fixed = fixed; s->interrupt = interrupt; s->volume = volume; s->rate = rate;
    s->link_a = link_a; s->link_b = link_b; s->compute_rank = compute_rank; s->rank = rank;
    s->born = born; s->freed = freed; s->memory = memory; s->start = start; s->end = end;
    s->start_seq = start_seq; s->end_seq = end_seq; s->cause = cause; s->peak = peak; s->peak_seq = peak_seq;
    size_t nodes = (size_t)total + 1, ops = (size_t)n + 2;
    i64 *start1 = malloc(sizeof(i64) * ops), *start2 = malloc(sizeof(i64) * ops);
    i32 *out1 = malloc(sizeof(i32) * (size_t)(e1 + 1)), *out2 = malloc(sizeof(i32) * (size_t)(e2 + 1));
    i32 *waits = calloc(nodes, sizeof(i32)), *missing = malloc(sizeof(i32) * (size_t)(groups * steps + 1));
    i64 *members = malloc(sizeof(i64) * (size_t)(groups * steps + 1)), *chain = malloc(sizeof(i64) * nodes);
    s->heap_room = 1024; s->heap = malloc(sizeof(Event) * 1024);
    s->debt = calloc((size_t)ranks + 1, sizeof(double)); s->idle = calloc((size_t)ranks + 1, sizeof(double));
    s->left = malloc(sizeof(double) * ops); s->speed = malloc(sizeof(double) * ops);
    s->since = malloc(sizeof(double) * ops); s->stamp = calloc(ops, sizeof(i32));
    s->flow_node = malloc(sizeof(i64) * ops);
    s->next_a = malloc(sizeof(i64) * ops); s->next_b = malloc(sizeof(i64) * ops);
    s->prev_a = malloc(sizeof(i64) * ops); s->prev_b = malloc(sizeof(i64) * ops);
    s->first = malloc(sizeof(i64) * (size_t)(links + 1)); s->count = calloc((size_t)links + 1, sizeof(i32));
    if (!start1 || !start2 || !out1 || !out2 || !waits || !missing || !members || !chain || !s->heap ||
        !s->debt || !s->idle || !s->left || !s->speed || !s->since || !s->stamp || !s->flow_node || !s->next_a || !s->next_b ||
        !s->prev_a || !s->prev_b || !s->first || !s->count) goto done;
    for (i64 l = 0; l < links; l++) s->first[l] = -1;
    for (i64 r = 0; r < ranks; r++) { peak[r] = memory[r]; peak_seq[r] = -1; }
    by_source(n, e1, s1, t1, start1, out1);
    by_source(n, e2, s2, t2, start2, out2);
    for (i64 k = 0; k < steps; k++) {
        for (i64 e = 0; e < e1; e++) waits[k * n + t1[e]]++;
        if (k) for (i64 e = 0; e < e2; e++) waits[k * n + t2[e]]++;
        for (i64 g = 0; g < groups; g++) { missing[k * groups + g] = (i32)group_size[g]; members[k * groups + g] = -1; }
    }
    for (i64 v = 0; v < total; v++) cause[v] = -1;
/* A node that waits for nothing more begins; in a group, when the last member is ready. */
#define READY(node) do { i64 v_ = (node), k_ = v_ / n, g_ = group[v_ - k_ * n]; \
        if (g_ < 0) begin(s, v_); \
        else { i64 q_ = k_ * groups + g_; chain[v_] = members[q_]; members[q_] = v_; \
               if (--missing[q_] == 0) for (i64 m_ = members[q_]; m_ >= 0; m_ = chain[m_]) { \
                   if (m_ != v_) cause[m_] = v_; begin(s, m_); } } \
    } while (0)
    for (i64 v = 0; v < total; v++) if (!waits[v]) READY(v);
    while (s->heap_size && !s->failed) {
        Event e = pop(s);
        s->now = e.time;
        i64 node = e.node, k = node / n, op = node - k * n;
        if (e.what == FLOW_ENDS) {
            if (e.stamp != s->stamp[op]) continue;
            i32 a = link_a[op], b = link_b[op];
            leave(s, a, op * 2);
            if (b >= 0) leave(s, b, op * 2 + 1);
            repace(s, a);
            if (b >= 0) repace(s, b);
            push(s, s->now + fixed[op], node, 0, OP_ENDS);
            continue;
        }
        /* a compute op is prolonged by the driving of transfers that began before its end */
        if (compute_rank[op] >= 0 && s->debt[rank[op]] > 0) {
            double longer = s->debt[rank[op]];
            s->debt[rank[op]] = 0;
            push(s, s->now + longer, node, 0, OP_ENDS);
            continue;
        }
        /* members of a group end with the one that carries the volume */
        i64 g = group[op], only = node;
        if (g >= 0) {
            i64 q = k * groups + g;
            if (++missing[q] < group_size[g]) continue; /* counts ends, from 0, after the start */
            only = members[q];
        }
        for (i64 m = only; m >= 0; m = g >= 0 ? chain[m] : -1) {
            i64 i = m - k * n;
            end[m] = s->now; end_seq[m] = s->history++;
            if (compute_rank[i] >= 0) s->idle[rank[i]] = s->now;
            memory[rank[i]] -= freed[i];
            ran++;
        }
        if ((ran & 0xfff) < 2) *progress = ran;
        for (i64 m = only; m >= 0; m = g >= 0 ? chain[m] : -1) {
            i64 i = m - k * n;
            for (i64 p = start1[i]; p < start1[i + 1]; p++) {
                i64 w = k * n + out1[p]; if (!--waits[w]) { cause[w] = m; READY(w); }
            }
            if (k + 1 < steps) for (i64 p = start2[i]; p < start2[i + 1]; p++) {
                i64 w = (k + 1) * n + out2[p]; if (!--waits[w]) { cause[w] = m; READY(w); }
            }
        }
    }
    if (!s->failed) result = ran;
done:
    free(start1); free(start2); free(out1); free(out2); free(waits); free(missing); free(members);
    free(chain); free(s->heap); free(s->debt); free(s->idle); free(s->left); free(s->speed); free(s->since);
    free(s->stamp); free(s->flow_node); free(s->next_a); free(s->next_b); free(s->prev_a); free(s->prev_b);
    free(s->first); free(s->count);
    return result;
}
