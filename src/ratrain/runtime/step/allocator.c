/* Counts what this process allocates in large blocks, and refuses what exceeds a limit.
 *
 * Preloaded (LD_PRELOAD) into a rank before torch: tensors on the CPU come from posix_memalign,
 * so their bytes at any moment, and at the peak, are known exactly, and a hard limit is one
 * comparison. Blocks below SMALL are left out: they are not tensors. Sizes are what the C library
 * says a block can hold. glibc only (__libc_* names).
 *
 * MKL, which is linked into torch's own library, takes buffers for a product with malloc and frees
 * them after it: their size depends on the processor and on the number of threads, so no proof can
 * hold them. They are counted apart, known by where in memory malloc was called from, and the limit
 * does not see them: nothing of ours is refused because a product is being made.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define SMALL 16384

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static atomic_llong held_bytes, peak_bytes, limit_bytes;

/* The code that makes products, and its blocks: a table of addresses, each within WINDOW places
 * from its own. A block that finds no place there is counted with the others. */
#define PLACES 4096
#define WINDOW 64
static atomic_uintptr_t code_from, code_to;
static atomic_uintptr_t product_blocks[PLACES + WINDOW];
static atomic_llong product_bytes, product_peak_bytes;

static void add(atomic_llong *held, atomic_llong *highest, long long change) {
    long long now = atomic_fetch_add(held, change) + change;
    long long peak = atomic_load(highest);
    while (now > peak && !atomic_compare_exchange_weak(highest, &peak, now)) {
    }
}

static void count(long long change) { add(&held_bytes, &peak_bytes, change); }

/* Puts `after` where `before` stands among the places of a block; 0: it stands in none of them. */
static int replace_place(uintptr_t block, uintptr_t before, uintptr_t after) {
    atomic_uintptr_t *places = &product_blocks[(block >> 4) * 0x9e3779b97f4a7c15u >> 52];
    for (int place = 0; place < WINDOW; place++) {
        uintptr_t expected = before;
        if (atomic_load(&places[place]) == before &&
            atomic_compare_exchange_strong(&places[place], &expected, after))
            return 1;
    }
    return 0;
}

static int is_product_code(void *caller) {
    uintptr_t address = (uintptr_t)caller;
    return address >= atomic_load(&code_from) && address < atomic_load(&code_to);
}

/* Counts a block of the code that makes products; 0: it is not one, or there is no place for it. */
static int counted_apart(void *block, void *caller) {
    size_t size = block && is_product_code(caller) ? malloc_usable_size(block) : 0;
    if (size < SMALL || !replace_place((uintptr_t)block, 0, (uintptr_t)block)) return 0;
    add(&product_bytes, &product_peak_bytes, (long long)size);
    return 1;
}

/* What a block of SMALL bytes or more no longer takes. */
static void uncount(void *block, size_t size) {
    if (atomic_load(&product_bytes) > 0 && replace_place((uintptr_t)block, (uintptr_t)block, 0))
        add(&product_bytes, &product_peak_bytes, -(long long)size);
    else
        count(-(long long)size);
}

static void *counted(void *block) {
    if (block) {
        size_t size = malloc_usable_size(block);
        if (size >= SMALL) count((long long)size);
    }
    return block;
}

static int too_much(size_t size) {
    long long limit = atomic_load(&limit_bytes);
    return limit > 0 && size >= SMALL && atomic_load(&held_bytes) + (long long)size > limit;
}

void *malloc(size_t size) {
    void *block = __libc_malloc(size);
    if (size >= SMALL && counted_apart(block, __builtin_return_address(0))) return block;
    return counted(block);
}

void *calloc(size_t number, size_t size) { return counted(__libc_calloc(number, size)); }

void *memalign(size_t alignment, size_t size) { return counted(__libc_memalign(alignment, size)); }

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **where, size_t alignment, size_t size) {
    if (too_much(size)) return ENOMEM;
    void *block = memalign(alignment, size);
    if (!block) return ENOMEM;
    *where = block;
    return 0;
}

void *realloc(void *block, size_t size) {
    size_t before = block ? malloc_usable_size(block) : 0;
    if (before >= SMALL) uncount(block, before);
    void *moved = __libc_realloc(block, size);
    counted(moved || !size ? moved : block);
    return moved;
}

void free(void *block) {
    if (block) {
        size_t size = malloc_usable_size(block);
        if (size >= SMALL) uncount(block, size);
    }
    __libc_free(block);
}

long long ratrain_held_bytes(void) { return atomic_load(&held_bytes); }

long long ratrain_peak_bytes(void) { return atomic_load(&peak_bytes); }

/* The most that buffers of products took at once. */
long long ratrain_product_peak_bytes(void) { return atomic_load(&product_peak_bytes); }

/* Where the code lies that makes products. */
void ratrain_set_product_code(uintptr_t from, uintptr_t to) {
    atomic_store(&code_from, from);
    atomic_store(&code_to, to);
}

/* The peak begins anew at what is held now. */
void ratrain_reset_peak(void) { atomic_store(&peak_bytes, atomic_load(&held_bytes)); }

/* 0: no limit. */
void ratrain_set_limit(long long bytes) { atomic_store(&limit_bytes, bytes); }
