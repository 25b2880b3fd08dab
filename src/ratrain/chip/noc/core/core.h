/* State of the mesh simulator. Every choice of one cycle is made on the state at the cycle's
 * start (`start` counts); pushes and pops take effect for the next cycle. */
#ifndef RATRAIN_NOC_CORE_H
#define RATRAIN_NOC_CORE_H

#include <stdint.h>

enum { NORTH, EAST, SOUTH, WEST, LOCAL, PORTS, UNIT = PORTS, REQUESTERS = 6 };
enum { PACKET, WORK };
enum {
    UNICAST, MULTICAST, LSB_AND,
    FP_ADD, FP_MUL, FP_MIN, FP_MAX,
    INT_ADD, INT_MUL, INT_MIN_S, INT_MIN_U, INT_MAX_S, INT_MAX_U,
    SELECT_AW, COLLECT_B, SEQ_AW
};
enum { MODE_RTL080, MODE_LOSSY, MODE_KINPUT, MODE_IDEAL };
enum { DONE, TIME_LIMIT, DEADLOCK, WEDGED, LOST_OPERAND };

#define MAX_FLIT_BYTES 128

/* One row of the task table, written by Python (ratrain.chip.noc.tasks.TASK_FIELDS). */
typedef struct {
    int64_t kind, plane, vc, op, format, group;
    int64_t src, dst, mask_x, mask_y, from_x, from_y; /* from_*: mask of a reduction's sources */
    int64_t flits, header_flits, bytes;
    int64_t read_at, write_at;   /* byte offsets in a node's memory; -1: carries no values */
    int64_t release, pending;    /* earliest cycle; dependencies not yet met */
    int64_t cycles, unit;        /* WORK: how long, and which serial unit (-1: none) */
    int64_t injected_at, first_at, last_at; /* results, -1 until they happen */
} Task;

/* "When `group` is complete (or a flit of it arrives) at `node`, tell `task` after `delay`." */
typedef struct { int64_t group, node, task, delay; } Edge;

typedef struct {
    int64_t columns, rows, origin_x, planes, vcs;
    int64_t input_depth, output_depth, link_stages;
    int64_t mode, latency, lockstep, core_load_permille;
    int64_t memory_bytes, trace;
    int64_t flit_bytes[8];
} Config;

/* `kind`: how the routers treat it; `count`: further passes through the unit (kinput). */
enum { PLAIN, PARALLEL, ARITHMETIC };
typedef struct { int32_t task, seq, data; uint8_t route, last, kind, count; } Flit;

/* What the routers read of a task's header, small enough to stay in the cache. */
typedef struct { int16_t dx, dy, sx, sy, mask_x, mask_y, from_x, from_y; uint8_t op, kind; } Header;
typedef struct { int16_t x, y; } Place;

typedef struct { uint8_t head, count, start; } Ring;

/* One wormhole arbiter: requests seen when the packet began, and the tree's own registers. */
typedef struct { uint8_t snapshot, last, locked, held, rr; } Arbiter;

typedef struct {
    Ring request, response;
    Flit request_flits[2], response_flits[2];
    int32_t busy, in_flight_group;
    int64_t issue_left;
} Unit;

/* Queues 0..4 are the inputs, 5..9 the outputs. `live` and `seen` have a bit for each queue that
 * holds a flit, now and at the start of the cycle. */
enum { QUEUES = 2 * PORTS, OUT = PORTS };
typedef struct {
    uint8_t count[16], start[16], head[16];
    uint16_t live, seen;
    uint8_t past[PORTS];
    uint8_t was_active, arbitrating; /* outputs whose arbiter remembers a request */
    Arbiter arbiter[PORTS];
    int32_t occupancy; /* flits in any queue, link stage or the unit of this router */
} Router;

typedef struct { int64_t time, seq; int32_t task; } Event;
typedef struct { int32_t group, node; int64_t cycle; } Delivery;
typedef struct { int64_t cycle; int32_t plane, node, port, task, seq; } Trace;

typedef struct Sim {
    Config c;
    int64_t nodes, layers, now, in_network, moved, idle_cycles, slots;
    Task *tasks;
    int64_t task_count, group_count;
    Edge *edges, *streams;
    int64_t *edge_from, *stream_from; /* group -> first edge, group_count + 1 entries */
    uint8_t *memory;

    Header *headers;      /* [task] */
    Place *places;        /* [node] */
    Router *routers;      /* [layer][node] */
    Flit *flits;          /* [layer][node][queue][slots] */
    Ring *stage_rings;    /* [layer][node][4][stages] */
    Flit *stage_flits;
    Unit *units;          /* [plane][node], virtual channel 0 only */
    Flit *pipes;          /* [plane][node][latency] */
    uint8_t *link_rr;     /* [plane][node][PORTS] round robin over virtual channels */
    uint8_t *inject_rr;   /* [plane][node] */

    int32_t *source_head, *source_tail; /* [layer][node] queue of tasks */
    int32_t *source_next;
    int32_t *source_seq;  /* next flit of the head task */
    int64_t *active_sources;
    int64_t active_source_count;
    uint8_t *source_listed;
    int64_t **stream_at;  /* [task] cycle at which each flit may leave, or NULL */
    int32_t *stream_have;

    Event *first;         /* tasks that wait for nothing, in order of release */
    int64_t first_count, first_next;
    Event *heap;
    int64_t heap_size, heap_room, event_seq, open_tasks;
    int64_t *unit_free;

    uint8_t *pool; int32_t *pool_refs, *pool_free;
    int64_t pool_size, pool_free_count;

    Delivery *deliveries; int64_t delivery_count, delivery_room;
    Trace *traces; int64_t trace_count, trace_room;
    int64_t *link_flits;  /* [plane][node][PORTS] */
    int64_t *combines;    /* [plane][node] */
    int64_t ejected, injected;
    int64_t status, fault_node, fault_op, fault_inputs, fault_plane, fault_task;
} Sim;

static inline int is_arithmetic(int64_t op) {
    return (op >= FP_ADD && op <= INT_MAX_U) || op == SEQ_AW;
}
static inline int is_parallel(int64_t op) {
    return op == LSB_AND || op == COLLECT_B || op == SELECT_AW;
}

/* arithmetic.c */
void noc_combine(int64_t op, int64_t format, uint8_t *into, const uint8_t *other, int64_t bytes);

/* router.c */
uint8_t noc_route(const Header *h, int x, int y);
uint8_t noc_expected(const Header *h, int x, int y);
int noc_tree_pick(uint8_t requests, uint8_t rr, int levels);
uint8_t noc_next_rr(uint8_t requests, uint8_t rr);
void noc_router_cycle(Sim *s, int64_t layer, int64_t plane, int64_t node);

/* tasks.c */
int noc_events_left(const Sim *s);
int64_t noc_next_time(const Sim *s);
void noc_run_events(Sim *s);
void noc_feed_streams(Sim *s, int64_t group, int64_t node);
void noc_deliver(Sim *s, int64_t group, int64_t node);
int noc_earlier(const void *a, const void *b);
int64_t noc_run(Sim *s, int64_t until);
int32_t noc_pool_take(Sim *s);

static inline Flit *queue_flit(Sim *s, int64_t router, int queue, int i) {
    return &s->flits[(router * QUEUES + queue) * s->slots + (i & (s->slots - 1))];
}

static inline Flit *queue_head(Sim *s, int64_t router, const Router *r, int queue) {
    return queue_flit(s, router, queue, r->head[queue]);
}

static inline void queue_push(Sim *s, int64_t router, Router *r, int queue, const Flit *flit) {
    *queue_flit(s, router, queue, r->head[queue] + r->count[queue]++) = *flit;
    r->live |= (uint16_t)(1 << queue);
    r->occupancy++;
    s->in_network++;
    s->moved++;
}

static inline void queue_pop(Sim *s, Router *r, int queue) {
    r->head[queue]++;
    if (--r->count[queue] == 0) r->live &= (uint16_t)~(1 << queue);
    r->occupancy--;
    s->in_network--;
}

static inline void noc_pool_drop(Sim *s, int32_t slot) {
    if (slot >= 0 && --s->pool_refs[slot] == 0) s->pool_free[s->pool_free_count++] = slot;
}
#endif
