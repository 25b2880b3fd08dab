/* How the background thread steps aside without ever taking the interpreter's lock: it looks at
   the waiters' count every `tick_ns`, and returns when the last tick brought no visit. */

#include <stdint.h>
#include <time.h>

enum { VISITS, GUESTS, STOP };

/* 0: nobody came within a tick. 1: somebody has been there for several ticks, or stop. */
int64_t ratrain_nap(volatile int64_t *state, int64_t tick_ns)
{
    struct timespec tick = {0, tick_ns};
    int64_t seen = state[VISITS];
    for (int still = 0; still < 4 && !state[STOP];) {
        clock_nanosleep(CLOCK_MONOTONIC, 0, &tick, 0);
        if (state[VISITS] != seen) {
            seen = state[VISITS];
            still = 0;
        } else if (state[GUESTS]) {
            still++;
        } else {
            return 0;
        }
    }
    return 1;
}
