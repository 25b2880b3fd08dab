/* Creating, reading and freeing a simulation: the calls Python makes. */
#include "core.h"
#include <stdlib.h>
#include <string.h>

static int64_t ring_slots(int64_t depth) {
    int64_t slots = 1;
    while (slots < depth) slots *= 2;
    return slots;
}

static void group_offsets(const Edge *edges, int64_t count, int64_t *from, int64_t groups) {
    int64_t i = 0;
    for (int64_t g = 0; g <= groups; g++) {
        while (i < count && edges[i].group < g) i++;
        from[g] = i;
    }
}

void noc_free(Sim *s) {
    if (!s) return;
    for (int64_t i = 0; s->stream_at && i < s->task_count; i++) free(s->stream_at[i]);
    void *blocks[] = {s->first, s->headers, s->places, s->routers, s->flits, s->stage_rings, s->stage_flits,
                      s->units, s->pipes, s->link_rr, s->inject_rr, s->source_head,
                      s->source_tail, s->source_next, s->source_seq, s->active_sources,
                      s->source_listed, s->stream_at, s->stream_have, s->heap, s->unit_free,
                      s->pool, s->pool_refs, s->pool_free, s->deliveries, s->traces,
                      s->link_flits, s->combines, s->edge_from, s->stream_from};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) free(blocks[i]);
    free(s);
}



Sim *noc_new(const Config *config, Task *tasks, int64_t task_count, int64_t group_count,
             Edge *edges, int64_t edge_count, Edge *streams, int64_t stream_count,
             int64_t unit_count, uint8_t *memory) {
    Sim *s = calloc(1, sizeof *s);
    if (!s) return 0;
    s->c = *config;
    s->nodes = config->columns * config->rows;
    s->layers = config->planes * config->vcs;
    s->tasks = tasks;
    s->task_count = task_count;
    s->group_count = group_count;
    s->edges = edges;
    s->streams = streams;
    s->memory = memory;
    s->slots = ring_slots(config->input_depth > config->output_depth ? config->input_depth
                                                                     : config->output_depth);
    size_t routers = (size_t)(s->layers * s->nodes), places = (size_t)(config->planes * s->nodes);
    size_t stages = routers * 4 * (size_t)config->link_stages;
    size_t depth = config->latency ? (size_t)config->latency : 1;
    s->routers = calloc(routers, sizeof(Router));
    s->flits = calloc(routers * QUEUES * (size_t)s->slots, sizeof(Flit));
    s->stage_rings = calloc(stages + 1, sizeof(Ring));
    s->stage_flits = calloc(2 * stages + 1, sizeof(Flit));
    s->units = calloc(places, sizeof(Unit));
    s->pipes = calloc(places * depth, sizeof(Flit));
    s->link_rr = calloc(places * PORTS, 1);
    s->inject_rr = calloc(places, 1);
    s->source_head = malloc(routers * sizeof(int32_t));
    s->source_tail = malloc(routers * sizeof(int32_t));
    s->source_seq = calloc(routers, sizeof(int32_t));
    s->source_next = calloc((size_t)task_count + 1, sizeof(int32_t));
    s->active_sources = calloc(places, sizeof(int64_t));
    s->source_listed = calloc(places, 1);
    s->stream_at = calloc((size_t)task_count + 1, sizeof(int64_t *));
    s->stream_have = calloc((size_t)task_count + 1, sizeof(int32_t));
    s->unit_free = calloc((size_t)unit_count + 1, sizeof(int64_t));
    s->link_flits = calloc(places * PORTS, sizeof(int64_t));
    s->combines = calloc(places, sizeof(int64_t));
    s->edge_from = calloc((size_t)group_count + 1, sizeof(int64_t));
    s->stream_from = calloc((size_t)group_count + 1, sizeof(int64_t));
    s->first = calloc((size_t)task_count + 1, sizeof(Event));
    s->headers = calloc((size_t)task_count + 1, sizeof(Header));
    s->places = calloc((size_t)s->nodes, sizeof(Place));
    if (!s->first || !s->headers || !s->places || !s->routers || !s->flits || !s->stage_rings || !s->stage_flits ||
        !s->units || !s->pipes || !s->link_rr || !s->inject_rr || !s->source_head ||
        !s->source_tail || !s->source_seq || !s->source_next || !s->active_sources ||
        !s->source_listed || !s->stream_at || !s->stream_have || !s->unit_free ||
        !s->link_flits || !s->combines || !s->edge_from || !s->stream_from) {
        noc_free(s);
        return 0;
    }
    group_offsets(edges, edge_count, s->edge_from, group_count);
    group_offsets(streams, stream_count, s->stream_from, group_count);
    for (size_t i = 0; i < routers; i++) s->source_head[i] = s->source_tail[i] = -1;
    for (size_t i = 0; i < places * depth; i++) s->pipes[i].task = -1;
    for (int64_t i = 0; i < stream_count; i++) {
        int64_t task = streams[i].task;
        s->stream_at[task] = calloc((size_t)tasks[task].flits, sizeof(int64_t));
    }
    for (int64_t i = 0; i < s->nodes; i++) {
        s->places[i].x = (int16_t)(i % config->columns + config->origin_x);
        s->places[i].y = (int16_t)(i / config->columns);
    }
    for (int64_t i = 0; i < task_count; i++) {
        const Task *t = &tasks[i];
        Place from = s->places[t->src], to = s->places[t->dst];
        uint8_t kind = is_parallel(t->op) ? PARALLEL : is_arithmetic(t->op) ? ARITHMETIC : PLAIN;
        s->headers[i] = (Header){to.x, to.y, from.x, from.y, (int16_t)t->mask_x,
                                 (int16_t)t->mask_y, (int16_t)t->from_x, (int16_t)t->from_y,
                                 (uint8_t)t->op, kind};
    }
    s->open_tasks = task_count;
    for (int64_t i = 0; i < task_count; i++)
        if (tasks[i].pending == 0)
            s->first[s->first_count++] = (Event){tasks[i].release, s->event_seq++, (int32_t)i};
    qsort(s->first, (size_t)s->first_count, sizeof(Event), noc_earlier);
    return s;
}

/* Counters, in the order of ratrain.chip.noc.core.COUNTERS. */
void noc_counters(const Sim *s, int64_t *out) {
    int64_t values[] = {s->now, s->injected, s->ejected, s->in_network, s->open_tasks,
                        s->fault_node, s->fault_plane, s->fault_op, s->fault_inputs,
                        s->fault_task, s->delivery_count, s->trace_count};
    memcpy(out, values, sizeof values);
}

void noc_read_links(const Sim *s, int64_t *links, int64_t *combines) {
    int64_t places = s->c.planes * s->nodes;
    memcpy(links, s->link_flits, (size_t)(places * PORTS) * sizeof(int64_t));
    memcpy(combines, s->combines, (size_t)places * sizeof(int64_t));
}

void noc_read_deliveries(const Sim *s, int64_t *out) {
    for (int64_t i = 0; i < s->delivery_count; i++) {
        out[3 * i] = s->deliveries[i].group;
        out[3 * i + 1] = s->deliveries[i].node;
        out[3 * i + 2] = s->deliveries[i].cycle;
    }
}

void noc_read_trace(const Sim *s, int64_t *out) {
    for (int64_t i = 0; i < s->trace_count; i++) {
        const Trace *t = &s->traces[i];
        int64_t row[] = {t->cycle, t->plane, t->node, t->port, t->task, t->seq};
        memcpy(out + 6 * i, row, sizeof row);
    }
}
