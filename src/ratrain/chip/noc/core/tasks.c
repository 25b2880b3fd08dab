/* Tasks: values in flight, events, dependencies, work on a node. */
#include "core.h"
#include <stdlib.h>
#include <string.h>

/* ---- values in flight ---- */

int32_t noc_pool_take(Sim *s) {
    if (s->pool_free_count == 0) {
        int64_t size = s->pool_size ? 2 * s->pool_size : 1024;
        s->pool = realloc(s->pool, (size_t)(size * MAX_FLIT_BYTES));
        s->pool_refs = realloc(s->pool_refs, (size_t)size * sizeof(int32_t));
        s->pool_free = realloc(s->pool_free, (size_t)size * sizeof(int32_t));
        for (int64_t i = size - 1; i >= s->pool_size; i--)
            s->pool_free[s->pool_free_count++] = (int32_t)i;
        s->pool_size = size;
    }
    int32_t slot = s->pool_free[--s->pool_free_count];
    s->pool_refs[slot] = 1;
    return slot;
}

/* ---- events: a sorted list of those known from the start, and a heap; (time, seq) order ---- */

static int earlier(const Event *a, const Event *b) {
    return a->time != b->time ? a->time < b->time : a->seq < b->seq;
}

/* Orders the starting list (qsort). */
int noc_earlier(const void *a, const void *b) {
    return earlier(a, b) ? -1 : earlier(b, a);
}

int noc_events_left(const Sim *s) { return s->heap_size || s->first_next < s->first_count; }

static void event_push(Sim *s, int64_t time, int32_t task) {
    if (s->heap_size == s->heap_room) {
        s->heap_room = s->heap_room ? 2 * s->heap_room : 1024;
        s->heap = realloc(s->heap, (size_t)s->heap_room * sizeof(Event));
    }
    int64_t i = s->heap_size++;
    Event e = {time, s->event_seq++, task};
    for (; i > 0 && earlier(&e, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = e;
}

static int first_is_next(const Sim *s) {
    return s->first_next < s->first_count &&
           (!s->heap_size || earlier(&s->first[s->first_next], &s->heap[0]));
}

int64_t noc_next_time(const Sim *s) {
    return first_is_next(s) ? s->first[s->first_next].time : s->heap[0].time;
}

static Event event_pop(Sim *s) {
    if (first_is_next(s)) return s->first[s->first_next++];
    Event top = s->heap[0], last = s->heap[--s->heap_size];
    int64_t i = 0, child;
    while ((child = 2 * i + 1) < s->heap_size) {
        if (child + 1 < s->heap_size && earlier(&s->heap[child + 1], &s->heap[child])) child++;
        if (!earlier(&s->heap[child], &last)) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

/* ---- dependencies ---- */

static void satisfy(Sim *s, const Edge *e) {
    Task *t = &s->tasks[e->task];
    int64_t ready = s->now + e->delay;
    if (ready > t->release) t->release = ready;
    if (--t->pending == 0) event_push(s, t->release, (int32_t)e->task);
}

/* First edge of [from, to) whose node is at least `node`; edges are sorted by node. */
static int64_t edge_bound(const Edge *edges, int64_t from, int64_t to, int64_t node) {
    while (from < to) {
        int64_t middle = (from + to) / 2;
        if (edges[middle].node < node) from = middle + 1;
        else to = middle;
    }
    return from;
}

static void group_complete(Sim *s, int64_t group, int64_t node) {
    int64_t from = s->edge_from[group], to = s->edge_from[group + 1];
    for (int64_t i = from; i < to && s->edges[i].node < 0; i++) satisfy(s, &s->edges[i]);
    for (int64_t i = edge_bound(s->edges, from, to, node); i < to && s->edges[i].node == node; i++)
        satisfy(s, &s->edges[i]);
}

/* A data flit reached `node`: the tasks that pass it on may send theirs `delay` later. */
void noc_feed_streams(Sim *s, int64_t group, int64_t node) {
    int64_t from = s->stream_from[group], to = s->stream_from[group + 1];
    for (int64_t i = edge_bound(s->streams, from, to, node);
         i < to && s->streams[i].node == node; i++) {
        const Edge *e = &s->streams[i];
        Task *t = &s->tasks[e->task];
        int64_t *at = s->stream_at[e->task], have = s->stream_have[e->task];
        if (have == 0) { /* the headers leave with the first beat */
            for (int64_t h = 0; h < t->header_flits; h++) at[have++] = s->now + e->delay;
            satisfy(s, e);
        }
        if (have < t->flits) at[have++] = s->now + e->delay;
        s->stream_have[e->task] = (int32_t)have;
    }
}

void noc_deliver(Sim *s, int64_t group, int64_t node) {
    if (s->delivery_count == s->delivery_room) {
        s->delivery_room = s->delivery_room ? 2 * s->delivery_room : 4096;
        s->deliveries = realloc(s->deliveries, (size_t)s->delivery_room * sizeof(Delivery));
    }
    s->deliveries[s->delivery_count++] = (Delivery){(int32_t)group, (int32_t)node, s->now};
    group_complete(s, group, node);
}

/* ---- work on a node: a duration, then a combination of two ranges of its memory ---- */

static void work_done(Sim *s, Task *t) {
    if (t->read_at >= 0 && t->bytes > 0) {
        uint8_t *base = s->memory + t->src * s->c.memory_bytes;
        if (t->op == UNICAST) memmove(base + t->write_at, base + t->read_at, (size_t)t->bytes);
        else noc_combine(t->op, t->format, base + t->write_at, base + t->read_at, t->bytes);
    }
    t->first_at = t->last_at = s->now;
    s->open_tasks--;
    noc_deliver(s, t->group, t->src);
}

static void source_append(Sim *s, int32_t task) {
    Task *t = &s->tasks[task];
    int64_t q = (t->plane * s->c.vcs + t->vc) * s->nodes + t->src;
    s->source_next[task] = -1;
    if (s->source_head[q] < 0) {
        s->source_head[q] = task;
        s->source_seq[q] = 0;
    } else {
        s->source_next[s->source_tail[q]] = task;
    }
    s->source_tail[q] = task;
    int64_t place = t->plane * s->nodes + t->src;
    if (!s->source_listed[place]) {
        s->source_listed[place] = 1;
        s->active_sources[s->active_source_count++] = place;
    }
}

void noc_run_events(Sim *s) {
    while (noc_events_left(s) && noc_next_time(s) <= s->now) {
        int32_t task = event_pop(s).task;
        Task *t = &s->tasks[task];
        if (t->kind == PACKET) {
            source_append(s, task);
        } else if (t->injected_at < 0) { /* start; a serial unit serves in order of arrival */
            int64_t start = s->now;
            if (t->unit >= 0) {
                int64_t *free_at = &s->unit_free[t->unit];
                if (*free_at > start) start = *free_at;
                *free_at = start + t->cycles;
            }
            t->injected_at = start;
            event_push(s, start + t->cycles, task);
        } else {
            work_done(s, t);
        }
    }
}
