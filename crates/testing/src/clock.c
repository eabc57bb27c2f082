/* Replaces the wall clock of nodes and servers, which load this library before the C library. clock.rs sets the replacement.
 *
 * These functions allocate nothing, so they may be called at any time and from any thread. Clocks that measure durations are not
 * changed. The time comes from the C library, which needs no system call, because a process under measurement reads the clock
 * hundreds of thousands of times per second. Before the constructor has run, the time comes from the kernel. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct set_clock {
  _Atomic int64_t micros; /* since the epoch, or the offset from the system clock */
  int64_t is_offset;
};

static const struct set_clock *set;
static int (*ask)(clockid_t, struct timespec *);

__attribute__((constructor)) static void open_clock(void) {
  const char *path = getenv("TEST_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) {
    abort();
  }
  void *mapped = mmap(NULL, sizeof *set, PROT_READ, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) {
    abort();
  }
  close(file);
  set = mapped;
  ask = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
}

int clock_gettime(clockid_t id, struct timespec *now) {
  if ((ask ? ask(id, now) : (int)syscall(SYS_clock_gettime, id, now)) != 0) {
    return -1;
  }
  if (set && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
    int64_t micros = set->micros;
    if (set->is_offset) {
      micros += now->tv_sec * INT64_C(1000000) + now->tv_nsec / 1000;
    }
    now->tv_sec = micros / 1000000;
    now->tv_nsec = micros % 1000000 * 1000;
  }
  return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec found;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &found) != 0) {
    return -1;
  }
  now->tv_sec = found.tv_sec;
  now->tv_usec = found.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *seconds) {
  struct timespec found;
  if (clock_gettime(CLOCK_REALTIME, &found) != 0) {
    return -1;
  }
  if (seconds) {
    *seconds = found.tv_sec;
  }
  return found.tv_sec;
}
