/* Counts what this process allocates in large blocks, and refuses what exceeds a limit.
 *
 * Preloaded (LD_PRELOAD) into a rank before torch: tensors on the CPU come from posix_memalign,
 * so their bytes at any moment, and at the peak, are known exactly, and a hard limit is one
 * comparison. Blocks below SMALL are left out: they are not tensors. Sizes are what the C library
 * says a block can hold. glibc only (__libc_* names).
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

static void count(long long change) {
    long long now = atomic_fetch_add(&held_bytes, change) + change;
    long long peak = atomic_load(&peak_bytes);
    while (now > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, now)) {
    }
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

void *malloc(size_t size) { return counted(__libc_malloc(size)); }

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
    void *moved = __libc_realloc(block, size);
    if (moved || !size) {
        if (before >= SMALL) count(-(long long)before);
        counted(moved);
    }
    return moved;
}

void free(void *block) {
    if (block) {
        size_t size = malloc_usable_size(block);
        if (size >= SMALL) count(-(long long)size);
    }
    __libc_free(block);
}

long long ratrain_held_bytes(void) { return atomic_load(&held_bytes); }

long long ratrain_peak_bytes(void) { return atomic_load(&peak_bytes); }

/* The peak begins anew at what is held now. */
void ratrain_reset_peak(void) { atomic_store(&peak_bytes, atomic_load(&held_bytes)); }

/* 0: no limit. */
void ratrain_set_limit(long long bytes) { atomic_store(&limit_bytes, bytes); }
