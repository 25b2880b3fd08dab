/* The clock: injection, links, ejection, and the run loop. */
#include "core.h"
#include <stdlib.h>
#include <string.h>

/* ---- moving flits ---- */

static void trace(Sim *s, int64_t plane, int64_t node, int port, const Flit *f) {
    if (!s->c.trace) return;
    if (s->trace_count == s->trace_room) {
        s->trace_room = s->trace_room ? 2 * s->trace_room : 4096;
        s->traces = realloc(s->traces, (size_t)s->trace_room * sizeof(Trace));
    }
    s->traces[s->trace_count++] =
        (Trace){s->now, (int32_t)plane, (int32_t)node, port, f->task, f->seq};
}

static void arrive(Sim *s, int64_t layer, int64_t node, int port, Flit f) {
    int64_t id = layer * s->nodes + node;
    Router *r = &s->routers[id];
    f.route = noc_route(&s->headers[f.task], s->places[node].x, s->places[node].y);
    queue_push(s, id, r, port, &f);
}

static void eject(Sim *s, int64_t plane, int64_t node, const Flit *f) {
    Task *t = &s->tasks[f->task];
    int64_t index = f->seq - t->header_flits, width = s->c.flit_bytes[plane];
    s->ejected++;
    if (t->first_at < 0) t->first_at = s->now;
    t->last_at = s->now;
    if (f->data >= 0) {
        if (t->write_at >= 0) {
            int64_t at = index * width, size = t->bytes - at < width ? t->bytes - at : width;
            memcpy(s->memory + node * s->c.memory_bytes + t->write_at + at,
                   s->pool + (int64_t)f->data * MAX_FLIT_BYTES, (size_t)size);
        }
        noc_pool_drop(s, f->data);
    }
    if (index >= 0 && s->stream_from[t->group] < s->stream_from[t->group + 1])
        noc_feed_streams(s, t->group, node);
    if (f->last) noc_deliver(s, t->group, node);
}

static int64_t neighbour(const Sim *s, int64_t node, int port) {
    switch (port) {
    case NORTH: return node + s->c.columns;
    case SOUTH: return node - s->c.columns;
    case EAST: return node + 1;
    default: return node - 1;
    }
}

static const int OPPOSITE[] = {SOUTH, WEST, NORTH, EAST};

/* One relay stage of a link to the next, from the far end back. */
static void stages_forward(Sim *s, int64_t layer, int64_t node, int port) {
    int64_t stages = s->c.link_stages, id = layer * s->nodes + node;
    Ring *rings = &s->stage_rings[(id * 4 + port) * stages];
    Flit *flits = &s->stage_flits[(id * 4 + port) * stages * 2];
    for (int64_t i = stages - 1; i >= 0; i--) {
        if (!rings[i].start) continue;
        Flit f = flits[2 * i + (rings[i].head & 1)];
        if (i == stages - 1) {
            int64_t next = neighbour(s, node, port);
            if (s->routers[layer * s->nodes + next].start[OPPOSITE[port]] >= s->c.input_depth)
                continue;
            arrive(s, layer, next, OPPOSITE[port], f);
            s->routers[id].occupancy--;
            s->in_network--;
        } else {
            if (rings[i + 1].start >= 2) continue;
            flits[2 * (i + 1) + ((rings[i + 1].head + rings[i + 1].count) & 1)] = f;
            rings[i + 1].count++;
            s->moved++;
        }
        rings[i].head++;
        rings[i].count--;
    }
}

static int link_ready(Sim *s, int64_t layer, int64_t node, int port) {
    if (port == LOCAL) return 1;
    if (s->c.link_stages) {
        int64_t id = layer * s->nodes + node;
        return s->stage_rings[(id * 4 + port) * s->c.link_stages].start < 2;
    }
    return s->routers[layer * s->nodes + neighbour(s, node, port)].start[OPPOSITE[port]] <
           s->c.input_depth;
}

static void link_send(Sim *s, int64_t layer, int64_t node, int port) {
    int64_t id = layer * s->nodes + node, plane = layer / s->c.vcs;
    Router *r = &s->routers[id];
    Flit f = *queue_head(s, id, r, OUT + port);
    queue_pop(s, r, OUT + port);
    s->link_flits[(plane * s->nodes + node) * PORTS + port]++;
    trace(s, plane, node, port, &f);
    s->moved++;
    if (port != LOCAL && s->c.link_stages) {
        int64_t base = (id * 4 + port) * s->c.link_stages;
        Ring *first = &s->stage_rings[base];
        s->stage_flits[base * 2 + ((first->head + first->count) & 1)] = f;
        first->count++;
        r->occupancy++; /* it is still this router's */
        s->in_network++;
        return;
    }
    if (port == LOCAL) eject(s, plane, node, &f);
    else arrive(s, layer, neighbour(s, node, port), OPPOSITE[port], f);
}

/* The links of one node of the usual mesh: one virtual channel, no relay stages. */
static void node_links_plain(Sim *s, int64_t layer, int64_t node) {
    unsigned left = s->routers[layer * s->nodes + node].seen >> OUT;
    for (; left; left &= left - 1) {
        int port = __builtin_ctz(left);
        if (link_ready(s, layer, node, port)) link_send(s, layer, node, port);
    }
}

/* The links of one node of any mesh: one flit per cycle each, virtual channels in turn. */
static void node_links(Sim *s, int64_t plane, int64_t node) {
    int64_t vcs = s->c.vcs, base = plane * vcs;
    int levels = vcs > 2 ? 2 : 1;
    for (int port = 0; port < PORTS; port++) {
        uint8_t ready = 0;
        for (int64_t v = 0; v < vcs; v++) {
            const Router *r = &s->routers[(base + v) * s->nodes + node];
            if ((r->seen >> (OUT + port) & 1) && link_ready(s, base + v, node, port)) ready |= 1 << v;
            if (s->c.link_stages && port != LOCAL && r->occupancy)
                stages_forward(s, base + v, node, port);
        }
        if (!ready) continue;
        uint8_t *rr = &s->link_rr[(plane * s->nodes + node) * PORTS + port];
        int v = vcs > 1 ? noc_tree_pick(ready, *rr, levels) : 0;
        *rr = noc_next_rr(ready, *rr);
        link_send(s, base + v, node, port);
    }
}

/* ---- injection: one flit per cycle and node of each plane ---- */

static int source_can_send(Sim *s, int64_t q) {
    int32_t task = s->source_head[q];
    if (task < 0 || s->routers[q].start[LOCAL] >= s->c.input_depth) return 0;
    if (!s->stream_at[task]) return 1;
    int32_t seq = s->source_seq[q];
    if (seq >= s->stream_have[task]) return 0;
    if (s->stream_at[task][seq] <= s->now) return 1;
    s->moved++; /* it will leave on its own: the network is not stuck */
    return 0;
}

static void source_send(Sim *s, int64_t layer, int64_t node) {
    int64_t q = layer * s->nodes + node;
    int32_t task = s->source_head[q], seq = s->source_seq[q]++;
    Task *t = &s->tasks[task];
    int64_t index = seq - t->header_flits, width = s->c.flit_bytes[t->plane];
    Flit f = {.task = task, .seq = seq, .data = -1, .last = seq == t->flits - 1,
              .kind = s->headers[task].kind};
    if (t->read_at >= 0 && index >= 0) {
        int64_t at = index * width, size = t->bytes - at < width ? t->bytes - at : width;
        f.data = noc_pool_take(s);
        uint8_t *values = s->pool + (int64_t)f.data * MAX_FLIT_BYTES;
        memset(values, 0, (size_t)width);
        memcpy(values, s->memory + node * s->c.memory_bytes + t->read_at + at, (size_t)size);
    }
    if (seq == 0) t->injected_at = s->now;
    s->injected++;
    arrive(s, layer, node, LOCAL, f);
    if (f.last) {
        s->source_head[q] = s->source_next[task];
        s->source_seq[q] = 0;
        s->open_tasks--;
    }
}

static void inject(Sim *s) {
    int64_t vcs = s->c.vcs, kept = 0, count = s->active_source_count;
    for (int64_t i = 0; i < count; i++) {
        int64_t place = s->active_sources[i], plane = place / s->nodes, node = place % s->nodes;
        uint8_t ready = 0, waiting = 0;
        for (int64_t v = 0; v < vcs; v++) {
            int64_t q = (plane * vcs + v) * s->nodes + node;
            waiting |= s->source_head[q] >= 0;
            if (source_can_send(s, q)) ready |= 1 << v;
        }
        if (ready) {
            int v = vcs > 1 ? noc_tree_pick(ready, s->inject_rr[place], vcs > 2 ? 2 : 1) : 0;
            s->inject_rr[place] = noc_next_rr(ready, s->inject_rr[place]);
            source_send(s, plane * vcs + v, node);
        }
        if (waiting) s->active_sources[kept++] = place;
        else s->source_listed[place] = 0;
    }
    s->active_source_count = kept;
}

/* ---- one cycle, and the run ---- */

static int snapshot(Sim *s, int64_t id) {
    Router *r = &s->routers[id];
    int active = r->occupancy > 0;
    if (!active && !r->was_active) return 0;
    r->was_active = (uint8_t)active;
    memcpy(r->start, r->count, sizeof r->start);
    r->seen = r->live;
    for (int64_t i = 0; i < 4 * s->c.link_stages; i++) {
        Ring *ring = &s->stage_rings[id * 4 * s->c.link_stages + i];
        ring->start = ring->count;
    }
    return 1;
}

static void cycle(Sim *s) {
    int64_t id = 0;
    for (int64_t layer = 0; s->in_network && layer < s->layers; layer++)
        for (int64_t node = 0; node < s->nodes; node++, id++) {
            if (!snapshot(s, id) || layer % s->c.vcs) continue;
            Unit *u = &s->units[layer / s->c.vcs * s->nodes + node];
            u->request.start = u->request.count;
            u->response.start = u->response.count;
        }
    id = 0;
    for (int64_t plane = 0, layer = 0; s->in_network && plane < s->c.planes; plane++)
        for (int64_t v = 0; v < s->c.vcs; v++, layer++)
            for (int64_t node = 0; node < s->nodes; node++, id++)
                if (s->routers[id].was_active) noc_router_cycle(s, layer, plane, node);
    int plain = s->c.vcs == 1 && s->c.link_stages == 0;
    for (int64_t plane = 0; s->in_network && plane < s->c.planes; plane++)
        for (int64_t node = 0; node < s->nodes; node++) {
            if (plain) {
                if (s->routers[plane * s->nodes + node].was_active)
                    node_links_plain(s, plane, node);
                continue;
            }
            int active = 0;
            for (int64_t v = 0; v < s->c.vcs; v++)
                active |= s->routers[(plane * s->c.vcs + v) * s->nodes + node].was_active;
            if (active) node_links(s, plane, node);
        }
    inject(s);
}

/* Cycles without any movement after which the network is called deadlocked: every arbiter has
 * settled long before, so no later cycle can differ. */
enum { STILL_CYCLES = 64 };

int64_t noc_run(Sim *s, int64_t until) {
    while (s->now < until) {
        noc_run_events(s);
        if (!s->in_network && !s->active_source_count) {
            if (!noc_events_left(s)) return s->open_tasks ? WEDGED : DONE;
            s->now = noc_next_time(s) < until ? noc_next_time(s) : until;
            s->idle_cycles = 0;
            continue;
        }
        s->moved = 0;
        cycle(s);
        if (s->status != DONE) return s->status; /* `now` is the cycle of the fault */
        s->idle_cycles = s->moved || noc_events_left(s) ? 0 : s->idle_cycles + 1;
        if (s->idle_cycles >= STILL_CYCLES) return DEADLOCK;
        s->now++;
    }
    return TIME_LIMIT;
}
