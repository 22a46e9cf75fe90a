// Sets a fake's switches from `<library>.conf` when it is loaded, for a process that nobody can reach into: lines
// `name=value`. Before everything else in a fake.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

__attribute__((constructor)) static void read_conf(void) {
    Dl_info self;
    char line[256], name[64];
    int value;
    if (!dladdr((void *)read_conf, &self)) return;
    snprintf(line, sizeof line, "%s.conf", self.dli_fname);
    FILE *conf = fopen(line, "r");
    void *library = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    while (conf && library && fgets(line, sizeof line, conf)) {
        if (sscanf(line, "%63[^=]=%d", name, &value) != 2) abort();
        int *knob = dlsym(library, name);
        if (!knob) abort();
        *knob = value;
    }
    if (conf) fclose(conf);
}

static void rest(int ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    if (ms) nanosleep(&time, NULL);
}
