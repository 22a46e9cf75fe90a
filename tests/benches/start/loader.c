/* Calls the plugin's job_prolog as `slurmstepd spank prolog` does, for a job without a request, and prints how long each call
   took in microseconds: loader PLUGIN CALLS ARGUMENT... It answers what the plugin asks of Slurm; it is no test of the plugin. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define JOB 4000000

static char **arguments;
static int count;

int spank_context(void) { return 5; }
int spank_get_item(void *spank, int item, ...) {
    va_list rest;
    va_start(rest, item);
    int known = 1;
    if (item >= 0 && item <= 2) {
        uint32_t *value = va_arg(rest, uint32_t *);
        *value = item == 2 ? JOB : 0;
    } else {
        known = 0;
    }
    va_end(rest);
    return known ? 0 : 3000;
}
int spank_option_register(void *spank, void *option) { return 0; }
int spank_getenv(void *spank, const char *name, char *value, int bytes) { return 3009; }
int spank_setenv(void *spank, const char *name, const char *value, int over) { return 0; }
int spank_unsetenv(void *spank, const char *name) { return 0; }
int spank_job_control_setenv(void *spank, const char *name, const char *value, int over) { return 0; }
const char *spank_strerror(int error) { return "not known here"; }
#define LOG(name) void name(const char *format, ...) { va_list rest; va_start(rest, format); vfprintf(stderr, format, rest); fputc('\n', stderr); va_end(rest); }
LOG(slurm_error) LOG(slurm_info)
void slurm_verbose(const char *format, ...) {}
void slurm_debug(const char *format, ...) {}
void slurm_debug2(const char *format, ...) {}
void slurm_debug3(const char *format, ...) {}

static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    arguments = argv + 3;
    count = argc - 3;
    void *plugin = dlopen(argv[1], RTLD_NOW);
    if (!plugin) { fprintf(stderr, "%s\n", dlerror()); return 1; }
    int (*prolog)(void *, int, char **) = (int (*)(void *, int, char **))dlsym(plugin, "slurm_spank_job_prolog");
    if (!prolog) return 1;
    for (int turn = atoi(argv[2]); turn > 0; turn--) {
        double begun = now_us();
        if (prolog(&count, count, arguments)) return 1;
        printf("%.1f\n", now_us() - begun);
    }
    return 0;
}
