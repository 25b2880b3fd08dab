/* Who waits for whom, from the uses of states: the compiled form of `_derived` in edges.py, which
 * is its twin and says what each list of edges is.
 *
 * Uses are counted into their states, and sorted within each, where they are few or nearly in
 * order. The edges come kind by kind, each in the order of the uses.
 */
#include <stdint.h>
#include <stdlib.h>

typedef int64_t i64;
typedef int32_t i32;
typedef int8_t i8;

enum { WRITE, READ, FREE };
enum { LANE_EDGE, READ_EDGE, FREE_EDGE, OVERWRITE_EDGE };
enum { FEW = 16 };

typedef struct { i64 key; i32 op, row; } Use; /* key: version, then mode */

typedef struct { /* a version of a state: its uses, and the ops that write and free it (-1: none) */
    i64 version;
    i32 state, first_read, end_of_reads, writer, freer, closer; /* closer: writes the next version */
} Block;

typedef struct { i64 *source, *target, *state; i8 *kind; i64 count; } Edges;

/* By key; uses of one key stay in order. */
static void sort(Use *use, i64 count, Use *spare) {
    if (count <= FEW) {
        for (i64 i = 1; i < count; i++) {
            Use moved = use[i];
            i64 at = i;
            for (; at > 0 && use[at - 1].key > moved.key; at--) use[at] = use[at - 1];
            use[at] = moved;
        }
        return;
    }
    i64 half = count / 2, left = 0, right = half, at = 0;
    sort(use, half, spare);
    sort(use + half, count - half, spare);
    if (use[half - 1].key <= use[half].key) return;
    for (i64 i = 0; i < half; i++) spare[i] = use[i];
    while (left < half)
        use[at++] = right < count && use[right].key < spare[left].key ? use[right++] : spare[left++];
}

static void add(Edges *edges, i64 source, i64 target, i64 state, int kind) {
    i64 at = edges->count++;
    edges->source[at] = source;
    edges->target[at] = target;
    edges->state[at] = state;
    edges->kind[at] = (i8)kind;
}

/* Within a step: lanes say what lies further ahead than the very next op. */
static void inside(Edges *edges, const i64 *lane, i64 source, i64 target, i64 state, int kind) {
    if (source < 0 || target < 0 || source == target) return;
    if (lane[source] != lane[target] || target <= source + 1) add(edges, source, target, state, kind);
}

/* From a step to the next: lanes say all but what leads from a lane's end to its start. */
static void across(Edges *edges, i64 ops, const i64 *lane, i64 source, i64 target, i64 state, int kind) {
    if (source < 0 || target < 0) return;
    int ends = source == ops - 1 || lane[source + 1] != lane[source];
    int starts = target == 0 || lane[target - 1] != lane[target];
    if (lane[source] != lane[target] || (ends && starts)) add(edges, source, target, state, kind);
}

/* Every edge list has room for as many edges as there are ops, and two for each use; every list of
 * uses for all of them, `unfreed` for all states. `counts` answers how long they are: inside,
 * across, unwritten, written_twice, freed_twice, unfreed. Returns 0, or -1: no memory. */
i64 ratrain_edges(i64 uses, const i64 *op, const i64 *state, const i64 *version, const i64 *mode,
                  i64 states, const i8 *persistent, i64 ops, const i64 *lane,
                  i64 *source1, i64 *target1, i64 *state1, i8 *kind1,
                  i64 *source2, i64 *target2, i64 *state2, i8 *kind2,
                  i64 *unwritten, i64 *written_twice, i64 *freed_twice, i64 *unfreed, i64 *counts) {
    i64 blocks = 0, result = -1;
    Edges in = {source1, target1, state1, kind1, 0}, over = {source2, target2, state2, kind2, 0};
    i64 *start = calloc((size_t)states + 2, sizeof(i64));
    i64 *writes = calloc((size_t)states + 1, sizeof(i64));
    i32 *first_writer = malloc(sizeof(i32) * ((size_t)states + 1)); /* of version 1 */
    i32 *last_writer = malloc(sizeof(i32) * ((size_t)states + 1));
    Use *use = malloc(sizeof(Use) * ((size_t)uses + 1)), *spare = NULL;
    Block *block = malloc(sizeof(Block) * ((size_t)uses + 1));
    if (!start || !writes || !first_writer || !last_writer || !use || !block) goto done;

    i64 longest = 0;
    for (i64 row = 0; row < uses; row++) start[state[row] + 2]++;
    for (i64 s = 0; s < states; s++) longest = start[s + 2] > longest ? start[s + 2] : longest;
    for (i64 s = 2; s < states + 2; s++) start[s] += start[s - 1];
    for (i64 row = 0; row < uses; row++) {
        Use *to = use + start[state[row] + 1]++;
        to->key = version[row] << 2 | mode[row];
        to->op = (i32)op[row];
        to->row = (i32)row;
        writes[state[row]] += mode[row] == WRITE;
    }
    if (!(spare = malloc(sizeof(Use) * ((size_t)longest + 1)))) goto done;

    for (i64 k = 0; k < 6; k++) counts[k] = 0;
    for (i64 s = 0; s < states; s++) {
        i64 first = blocks, freed = 0;
        first_writer[s] = last_writer[s] = -1;
        sort(use + start[s], start[s + 1] - start[s], spare);
        for (i64 at = start[s]; at < start[s + 1];) {
            Block *b = block + blocks++;
            b->version = use[at].key >> 2;
            b->state = (i32)s;
            b->writer = b->freer = b->closer = -1;
            for (; at < start[s + 1] && use[at].key == (b->version << 2 | WRITE); at++)
                if (b->writer < 0) b->writer = use[at].op;
                else written_twice[counts[3]++] = use[at].row;
            b->first_read = (i32)at;
            while (at < start[s + 1] && use[at].key == (b->version << 2 | READ)) at++;
            b->end_of_reads = (i32)at;
            for (; at < start[s + 1] && use[at].key == (b->version << 2 | FREE); at++)
                if (b->freer < 0) b->freer = use[at].op;
                else freed_twice[counts[4]++] = use[at].row;
            if (b->writer < 0 && !(persistent[s] && b->version == 0))
                for (i64 lost = b->first_read; lost < at; lost++) unwritten[counts[2]++] = use[lost].row;
            if (b->writer >= 0 && b->version == 1) first_writer[s] = b->writer;
            if (b->writer >= 0 && b->version == writes[s]) last_writer[s] = b->writer;
            if (blocks - 1 > first) b[-1].closer = b->writer;
            freed |= b->freer >= 0;
        }
        if (writes[s] && !persistent[s] && !freed) unfreed[counts[5]++] = s;
    }

#define FOR_BLOCKS for (const Block *b = block; b < block + blocks; b++)
#define FOR_READS FOR_BLOCKS for (i64 r = b->first_read; r < b->end_of_reads; r++)
#define NEXT_CLOSER (b->writer >= 0 && b->version == writes[b->state] ? first_writer[b->state] : -1)
#define BARELY (b->first_read == b->end_of_reads) /* nobody reads it */
    for (i64 i = 0; i + 1 < ops; i++)
        if (lane[i] == lane[i + 1]) add(&in, i, i + 1, -1, LANE_EDGE);
    FOR_READS inside(&in, lane, b->writer, use[r].op, b->state, READ_EDGE);
    FOR_READS inside(&in, lane, use[r].op, b->freer, b->state, FREE_EDGE);
    FOR_BLOCKS if (BARELY) inside(&in, lane, b->writer, b->freer, b->state, FREE_EDGE);
    FOR_READS if (b->freer < 0) inside(&in, lane, use[r].op, b->closer, b->state, OVERWRITE_EDGE);
    FOR_BLOCKS inside(&in, lane, b->freer, b->closer, b->state, OVERWRITE_EDGE);
    FOR_BLOCKS if (BARELY && b->freer < 0) inside(&in, lane, b->writer, b->closer, b->state, OVERWRITE_EDGE);

    for (i64 i = 0, begin = 0; i < ops; i++)
        if (i + 1 == ops || lane[i] != lane[i + 1]) {
            add(&over, i, begin, -1, LANE_EDGE);
            begin = i + 1;
        }
    FOR_READS if (persistent[b->state] && b->version == 0)
        across(&over, ops, lane, last_writer[b->state], use[r].op, b->state, READ_EDGE);
    FOR_READS if (b->freer < 0) across(&over, ops, lane, use[r].op, NEXT_CLOSER, b->state, OVERWRITE_EDGE);
    FOR_BLOCKS across(&over, ops, lane, b->freer, NEXT_CLOSER, b->state, OVERWRITE_EDGE);
    FOR_BLOCKS if (BARELY && b->freer < 0)
        across(&over, ops, lane, b->writer, NEXT_CLOSER, b->state, OVERWRITE_EDGE);
    counts[0] = in.count;
    counts[1] = over.count;
    result = 0;
done:
    free(start); free(writes); free(first_writer); free(last_writer); free(use); free(spare); free(block);
    return result;
}
