/* Preloaded into every program of a node: its clock is off by so many seconds as the first line of CLOCK says. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long off(void)
{
	int kept = errno;
	char text[16] = "";
	int file = syscall(SYS_openat, AT_FDCWD, CLOCK, O_RDONLY | O_CLOEXEC);
	if (file >= 0) {
		if (syscall(SYS_read, file, text, sizeof text - 1) < 0)
			text[0] = 0;
		syscall(SYS_close, file);
	}
	errno = kept;
	return strtol(text, NULL, 10);
}

int clock_gettime(clockid_t which, struct timespec *at)
{
	int failed = syscall(SYS_clock_gettime, which, at);
	if (!failed && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
		at->tv_sec += off();
	return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
	int failed = syscall(SYS_gettimeofday, at, zone);
	if (!failed && at)
		at->tv_sec += off();
	return failed;
}

time_t time(time_t *at)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (at)
		*at = now.tv_sec;
	return now.tv_sec;
}
