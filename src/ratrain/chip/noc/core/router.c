/* One router for one cycle: routes, wormhole and reduction arbiters, forks, the reduction unit. */
#include "core.h"
#include <string.h>

static inline int within(int at, int of, int mask) { return ((at ^ of) & ~mask) == 0; }

/* The set of outputs for a flit at router (x, y): XY, or the row-then-column tree. */
uint8_t noc_route(const Header *h, int x, int y) {
    if (h->op != MULTICAST) {
        if (x != h->dx) return x < h->dx ? 1 << EAST : 1 << WEST;
        if (y != h->dy) return y < h->dy ? 1 << NORTH : 1 << SOUTH;
        return 1 << LOCAL;
    }
    int in_x = within(x, h->dx, h->mask_x), in_y = within(y, h->dy, h->mask_y);
    uint8_t route = in_x && in_y ? 1 << LOCAL : 0;
    if (y == h->sy) {
        if (x >= h->sx && x < (h->dx | h->mask_x)) route |= 1 << EAST;
        if (x <= h->sx && x > (h->dx & ~h->mask_x)) route |= 1 << WEST;
    }
    if (in_x) {
        if (y >= h->sy && y < (h->dy | h->mask_y)) route |= 1 << NORTH;
        if (y <= h->sy && y > (h->dy & ~h->mask_y)) route |= 1 << SOUTH;
    }
    return route;
}

/* The inputs of router (x, y) that must each bring a flit of this reduction. */
uint8_t noc_expected(const Header *h, int x, int y) {
    int in_x = within(x, h->sx, h->from_x), in_y = within(y, h->sy, h->from_y);
    uint8_t inputs = in_x && in_y ? 1 << LOCAL : 0;
    if (x == h->dx) {
        if (y >= h->dy && y < (h->sy | h->from_y)) inputs |= 1 << NORTH;
        if (y <= h->dy && y > (h->sy & ~h->from_y)) inputs |= 1 << SOUTH;
    }
    if (in_y) {
        if (x >= h->dx && x < (h->sx | h->from_x)) inputs |= 1 << EAST;
        if (x <= h->dx && x > (h->sx & ~h->from_x)) inputs |= 1 << WEST;
    }
    return inputs;
}

/* A binary tree over 2^levels leaves; where both halves ask, the bit of rr decides. */
int noc_tree_pick(uint8_t requests, uint8_t rr, int levels) {
    if (!(requests & (requests - 1))) return requests ? __builtin_ctz(requests) : 0;
    int leaf = 0, width = 1 << levels;
    for (int level = levels - 1; level >= 0; level--) {
        width >>= 1;
        uint8_t half = (uint8_t)((1 << width) - 1);
        uint8_t low = requests & half, high = (uint8_t)(requests >> width) & half;
        if (high && (!low || ((rr >> level) & 1))) {
            leaf += width;
            requests = high;
        } else {
            requests = low;
        }
    }
    return leaf;
}

/* The next requester above rr, else the lowest one. */
uint8_t noc_next_rr(uint8_t requests, uint8_t rr) {
    unsigned above = requests & ~((2u << rr) - 1);
    if (above) return (uint8_t)__builtin_ctz(above);
    return requests ? (uint8_t)__builtin_ctz(requests) : rr;
}

static int same_reduction(const Task *a, const Task *b) {
    return a->op == b->op && a->dst == b->dst && a->from_x == b->from_x && a->from_y == b->from_y;
}

/* A flit leaves for an output (or the unit): the copy holds its own reference to the values. */
static void push_out(Sim *s, Router *r, int64_t id, int port, Flit flit) {
    queue_push(s, id, r, OUT + port, &flit);
    if (flit.data >= 0) s->pool_refs[flit.data]++;
}

/* Combine the flits of `inputs` (bits) into one with the header of the lowest. */
static Flit merge(Sim *s, const Flit *const heads[], uint8_t inputs, int only_two) {
    Flit result = {0};
    int64_t bytes = 0;
    int taken = 0;
    const Task *t = 0;
    for (int i = 0; i < PORTS; i++) {
        if (!(inputs >> i & 1) || (only_two && taken == 2)) continue;
        if (taken++ == 0) {
            result = *heads[i];
            t = &s->tasks[result.task];
            bytes = s->c.flit_bytes[t->plane];
            if (result.data >= 0) {
                int32_t slot = noc_pool_take(s);
                memcpy(s->pool + (int64_t)slot * MAX_FLIT_BYTES,
                       s->pool + (int64_t)result.data * MAX_FLIT_BYTES, (size_t)bytes);
                result.data = slot;
            }
        } else if (result.data >= 0 && heads[i]->data >= 0 && t->op != SEQ_AW &&
                   t->op != SELECT_AW) {
            noc_combine(t->op, t->format, s->pool + (int64_t)result.data * MAX_FLIT_BYTES,
                        s->pool + (int64_t)heads[i]->data * MAX_FLIT_BYTES, bytes);
        }
    }
    return result;
}

static int bit_count(uint8_t bits) { return __builtin_popcount(bits); }

/* Address beats carry no operands: nothing to compute, one pass, no FPU slot. */
static int is_header(const Task *t, const Flit *f) {
    return t->op == SEQ_AW || f->seq < t->header_flits;
}

/* Whether the core's own floating-point work takes this cycle's issue slot. */
static int core_takes_slot(const Sim *s) {
    int64_t load = s->c.core_load_permille;
    return load > 0 && s->now * load / 1000 != (s->now + 1) * load / 1000;
}

static void push_response(Sim *s, Unit *u, Flit flit) {
    u->response_flits[(u->response.head + u->response.count) & 1] = flit;
    u->response.count++;
    s->moved++;
}

/* The pipe advances as a whole, unless its last stage is full and cannot leave. A flit with
 * `count` > 0 needs further passes (kinput): it enters the pipe again, before any new one. */
static void unit_pipe(Sim *s, int64_t plane, int64_t node) {
    Unit *u = &s->units[plane * s->nodes + node];
    int64_t depth = s->c.latency;
    Flit *pipe = &s->pipes[(plane * s->nodes + node) * (depth ? depth : 1)];
    Flit back = {.task = -1};
    if (depth && pipe[depth - 1].task >= 0) {
        Flit out = pipe[depth - 1];
        if (out.count > 0) {
            back = out;
            back.count--;
        } else if (u->response.start < 2) {
            push_response(s, u, out);
        } else {
            return;
        }
    }
    int64_t in_pipe = 0;
    for (int64_t i = depth - 1; i > 0; i--) {
        pipe[i] = pipe[i - 1];
        in_pipe += pipe[i].task >= 0;
    }
    if (in_pipe) s->moved++;
    if (depth) pipe[0].task = -1;
    if (back.task >= 0) {
        pipe[0] = back;
        s->moved++;
        return;
    }
    if (u->request.start == 0) return;
    Flit head = u->request_flits[u->request.head & 1];
    const Task *t = &s->tasks[head.task];
    if (t->op >= FP_ADD && t->op <= FP_MAX && !is_header(t, &head) && core_takes_slot(s)) {
        s->moved++;
        return;
    }
    if (depth) {
        pipe[0] = head;
    } else if (u->response.start < 2) {
        push_response(s, u, head);
    } else {
        return;
    }
    u->request.head++;
    u->request.count--;
    s->moved++;
}

/* Take one set of operands, if all expected ones are here. */
static void unit_accept(Sim *s, Router *r, int64_t plane, int64_t node, const Flit *const heads[],
                        uint8_t arithmetic, const uint8_t expected[], uint8_t *taken) {
    Unit *u = &s->units[plane * s->nodes + node];
    if (!arithmetic) return;
    int a = __builtin_ctz(arithmetic);
    const Task *t = &s->tasks[heads[a]->task];
    uint8_t need = expected[a];
    for (int i = 0; i < PORTS; i++)
        if (need >> i & 1)
            if (!(arithmetic >> i & 1) || !same_reduction(t, &s->tasks[heads[i]->task])) return;
    if (u->request.start >= 2) return;
    int inputs = bit_count(need);
    if (inputs > 2 && s->c.mode == MODE_RTL080) {
        s->status = LOST_OPERAND;
        s->fault_node = node;
        s->fault_plane = plane;
        s->fault_op = t->op;
        s->fault_inputs = need;
        s->fault_task = heads[a]->task;
        return;
    }
    if (s->c.mode == MODE_KINPUT && u->busy && u->in_flight_group != (int32_t)t->group) return;
    Flit flit = merge(s, heads, need, s->c.mode == MODE_LOSSY);
    flit.route = heads[a]->route;
    flit.count = s->c.mode == MODE_KINPUT && !is_header(t, &flit) ? (uint8_t)(inputs - 2) : 0;
    u->request_flits[(u->request.head + u->request.count) & 1] = flit;
    u->request.count++;
    u->busy++;
    u->in_flight_group = (int32_t)t->group;
    r->occupancy++;
    s->in_network++;
    s->moved++;
    if (!is_header(t, &flit)) s->combines[plane * s->nodes + node] += inputs - 1;
    *taken |= need;
}

static void pop_inputs(Sim *s, Router *r, int64_t id, uint8_t inputs) {
    for (; inputs; inputs &= (uint8_t)(inputs - 1)) {
        int i = __builtin_ctz(inputs);
        noc_pool_drop(s, queue_head(s, id, r, i)->data);
        queue_pop(s, r, i);
        r->past[i] = 0;
    }
}

/* The parallel reduction that can complete at output `o`, as a set of inputs; 0 if none. */
static uint8_t completable(Sim *s, const Flit *const heads[], const uint8_t expected[],
                           uint8_t par) {
    for (int i = 0; i < PORTS; i++) {
        if (!(par >> i & 1)) continue;
        uint8_t need = expected[i];
        if ((need & par) != need || !need) continue;
        int same = 1;
        for (int j = 0; j < PORTS; j++)
            if (need >> j & 1)
                same &= same_reduction(&s->tasks[heads[i]->task], &s->tasks[heads[j]->task]);
        if (same) return need;
    }
    return 0;
}

static uint8_t requests_used(const Arbiter *a, uint8_t cand) {
    uint8_t seen = a->snapshot == 0 || a->last ? cand : a->snapshot;
    return a->locked ? a->held : seen;
}

/* Who the arbiter of one output selects among `cand`; -1 if that one has no flit now. */
static int selected(const Arbiter *a, uint8_t cand) {
    if (!cand) return -1;
    int pick = noc_tree_pick(requests_used(a, cand), a->rr, 3);
    return cand >> pick & 1 ? pick : -1;
}

/* The arbiter's registers after this cycle; `grant`: the last flit of a packet left. */
static void advance(Router *r, int output, uint8_t cand, int grant) {
    Arbiter *a = &r->arbiter[output];
    uint8_t used = requests_used(a, cand);
    if (a->snapshot == 0 || a->last) a->snapshot = cand;
    a->last = (uint8_t)grant;
    if (grant) a->rr = noc_next_rr(used, a->rr);
    a->locked = used && !grant;
    a->held = used;
    uint8_t bit = (uint8_t)(1 << output);
    r->arbitrating = a->snapshot || a->locked ? r->arbitrating | bit : r->arbitrating & ~bit;
}

/* Lockstep forks: a flit moves only when it won every output it wants. */
static void keep_whole_forks(const uint8_t wants[], int picks[]) {
    uint8_t lost = 0;
    for (int i = 0; i < PORTS; i++)
        for (int o = 0; o < PORTS; o++)
            if ((wants[i] >> o & 1) && picks[o] != i) lost |= 1 << i;
    for (int o = 0; o < PORTS; o++)
        if (picks[o] >= 0 && picks[o] < UNIT && lost >> picks[o] & 1) picks[o] = -1;
}

/* The common case: every head is a unicast with one output and nothing is being reduced. The same
 * decisions as below without the bookkeeping of forks; 0 if this is not that case. */
static int plain_cycle(Sim *s, Router *r, int64_t id) {
    uint8_t cands[PORTS] = {0};
    const Flit *heads[PORTS];
    unsigned outputs = 0;
    for (unsigned left = r->seen & ((1 << PORTS) - 1); left; left &= left - 1) {
        int i = __builtin_ctz(left);
        const Flit *head = heads[i] = queue_head(s, id, r, i);
        if (head->kind != PLAIN || (head->route & (head->route - 1))) return 0;
        cands[__builtin_ctz(head->route)] |= (uint8_t)(1 << i);
        outputs |= head->route;
    }
    for (unsigned left = outputs | r->arbitrating; left; left &= left - 1) {
        int o = __builtin_ctz(left), pick = -1;
        Arbiter *a = &r->arbiter[o];
        if (cands[o] && r->start[OUT + o] < s->c.output_depth) pick = selected(a, cands[o]);
        advance(r, o, cands[o], pick >= 0 && heads[pick]->last);
        if (pick >= 0) { /* the flit moves with its reference to the values */
            queue_push(s, id, r, OUT + o, heads[pick]);
            queue_pop(s, r, pick);
        }
    }
    return 1;
}

void noc_router_cycle(Sim *s, int64_t layer, int64_t plane, int64_t node) {
    int64_t id = layer * s->nodes + node;
    Router *r = &s->routers[id];
    Unit *u = layer == plane * s->c.vcs ? &s->units[plane * s->nodes + node] : 0;
    if (!(u && u->busy) && plain_cycle(s, r, id)) return;
    const Flit *heads[REQUESTERS] = {0};
    uint8_t wants[REQUESTERS] = {0}, expected[PORTS] = {0}, served[PORTS] = {0};
    uint8_t arithmetic = 0, moved = 0, outputs = 0, cands[PORTS] = {0}, parallel[PORTS] = {0};

    for (unsigned left = r->seen & ((1 << PORTS) - 1); left; left &= left - 1) {
        int i = __builtin_ctz(left);
        const Flit *head = heads[i] = queue_head(s, id, r, i);
        uint8_t want = head->route & (uint8_t)~r->past[i], bit = (uint8_t)(1 << i);
        if (i == NORTH || i == SOUTH) want &= (uint8_t)~(1 << EAST | 1 << WEST);
        if (head->kind != PLAIN) {
            expected[i] = noc_expected(&s->headers[head->task], s->places[node].x,
                                       s->places[node].y);
            if (head->kind == ARITHMETIC && bit_count(expected[i]) > 1) {
                arithmetic |= bit;
                want = 0;
            }
        }
        wants[i] = want;
        outputs |= want;
        for (; want; want &= (uint8_t)(want - 1)) {
            int o = __builtin_ctz(want);
            if (head->kind == PARALLEL) parallel[o] |= bit;
            else cands[o] |= bit;
        }
    }
    if (u && u->response.start) {
        heads[UNIT] = &u->response_flits[u->response.head & 1];
        wants[UNIT] = heads[UNIT]->route;
        outputs |= wants[UNIT];
        cands[__builtin_ctz(wants[UNIT])] |= 1 << UNIT;
    }

    int picks[PORTS] = {-1, -1, -1, -1, -1}, unit_sent = 0;
    uint8_t merged[PORTS] = {0};
    for (unsigned left = outputs; left; left &= left - 1) {
        int o = __builtin_ctz(left);
        int room = r->start[OUT + o] < s->c.output_depth;
        uint8_t need = parallel[o] ? completable(s, heads, expected, parallel[o]) : 0;
        if (room && need) merged[o] = need;
        if (room && !need) picks[o] = selected(&r->arbiter[o], cands[o]);
    }
    if (s->c.lockstep) keep_whole_forks(wants, picks);
    for (int o = 0; o < PORTS; o++) {
        if (cands[o] || r->arbitrating >> o & 1)
            advance(r, o, cands[o], picks[o] >= 0 && heads[picks[o]]->last);
    }
    for (unsigned left = outputs; left; left &= left - 1) {
        int o = __builtin_ctz(left);
        if (merged[o]) {
            Flit flit = merge(s, heads, merged[o], 0);
            push_out(s, r, id, o, flit);
            noc_pool_drop(s, flit.data); /* merge made one reference, push_out another */
            moved |= merged[o];
            for (int i = 0; i < PORTS; i++)
                if (merged[o] >> i & 1) served[i] |= (uint8_t)(1 << o);
        } else if (picks[o] == UNIT) {
            push_out(s, r, id, o, *heads[UNIT]);
            unit_sent = 1;
        } else if (picks[o] >= 0) {
            push_out(s, r, id, o, *heads[picks[o]]);
            moved |= (uint8_t)(1 << picks[o]);
            served[picks[o]] |= (uint8_t)(1 << o);
        }
    }

    uint8_t taken = 0;
    if (u) {
        unit_accept(s, r, plane, node, heads, arithmetic, expected, &taken);
        if (u->busy) unit_pipe(s, plane, node);
        if (unit_sent) {
            noc_pool_drop(s, heads[UNIT]->data);
            u->response.head++;
            u->response.count--;
            u->busy--;
            r->occupancy--;
            s->in_network--;
        }
    }
    for (unsigned left = moved; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        uint8_t covered = r->past[i] | served[i];
        if ((covered & heads[i]->route) == heads[i]->route) taken |= (uint8_t)(1 << i);
        else r->past[i] = covered;
    }
    if (taken) pop_inputs(s, r, id, taken);
}
