/* Copies between mappings of 4 KiB pages, four pages at a time and past the cache.
 *
 * The C library copies 256 KiB out of such a mapping with one string instruction, which waits for
 * the address of each page in turn: 4 GB/s where this does 11 (docs/notes/transport.md). */

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

enum { PAGE = 4096, WAYS = 4, LINE = 64 };

__attribute__((target("avx2"))) static void copy_ways(char *to, const char *from, int64_t size)
{
    for (; size >= WAYS * PAGE; size -= WAYS * PAGE, to += WAYS * PAGE, from += WAYS * PAGE)
        for (int at = 0; at < PAGE; at += LINE)
            for (int way = 0; way < WAYS; way++) {
                const char *source = from + way * PAGE + at;
                __m256i *target = (__m256i *)(to + way * PAGE + at);
                __m256i first = _mm256_loadu_si256((const __m256i *)source);
                __m256i second = _mm256_loadu_si256((const __m256i *)(source + LINE / 2));
                _mm_prefetch(source + WAYS * PAGE, _MM_HINT_T0);
                _mm256_stream_si256(target, first);
                _mm256_stream_si256(target + 1, second);
            }
    _mm_sfence();
    memcpy(to, from, (size_t)size);
}

void ratrain_copy(char *to, const char *from, int64_t size)
{
    int64_t head = -(intptr_t)to & (LINE - 1); /* stores past the cache want whole lines */
    if (!__builtin_cpu_supports("avx2") || size < WAYS * PAGE + head) {
        memcpy(to, from, (size_t)size);
        return;
    }
    memcpy(to, from, (size_t)head);
    copy_ways(to + head, from + head, size - head);
}

#else

void ratrain_copy(char *to, const char *from, int64_t size)
{
    memcpy(to, from, (size_t)size);
}

#endif
