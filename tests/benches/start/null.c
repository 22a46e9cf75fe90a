/* A SPANK plugin that does nothing where ours does something: what Slurm itself takes to call one. */
const char plugin_name[] = "null";
const char plugin_type[] = "spank";
const unsigned int plugin_version = VERSION;
const unsigned int spank_plugin_version = 1;
#define HOOK(name) int name(void *spank, int count, char **arguments) { return 0; }
HOOK(slurm_spank_init) HOOK(slurm_spank_init_post_opt) HOOK(slurm_spank_task_init)
HOOK(slurm_spank_job_prolog) HOOK(slurm_spank_job_epilog) HOOK(slurm_spank_exit)
