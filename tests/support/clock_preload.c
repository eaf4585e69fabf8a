/* A process whose CLOCK_REALTIME is off, and can be set while it lives.

   The file $DPSTREAM_TEST_CLOCK holds by how many nanoseconds, a 64-bit integer of this machine.
   It is mapped once, so whoever writes it sets the clock. Every other clock, and with it every
   wait, stays as it is. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static const volatile int64_t *offset;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("DPSTREAM_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED)
        offset = mapped;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real_clock_gettime)
        real_clock_gettime =
            (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real_clock_gettime(clock, now);
    if (failed || !offset || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return failed;
    int64_t moment = now->tv_sec * SECOND + now->tv_nsec + *offset;
    now->tv_sec = moment / SECOND;
    now->tv_nsec = moment % SECOND;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *where) {
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise))
        return (time_t)-1;
    if (where)
        *where = precise.tv_sec;
    return precise.tv_sec;
}
