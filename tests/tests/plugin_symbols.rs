//! What the plugin's file offers and needs: Slurm's names and nothing else. Another name it offered could be
//! taken for somebody else's in the same process; a name that srun, slurmd and slurmstepd don't have would
//! keep the file from loading.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a step that fails is the test's failure")]

use std::collections::BTreeSet;

use aimaster_tests::{BUILT_PLUGIN, target_dir};
use object::{Object, ObjectSymbol};

const OFFERED: [&str; 11] = [
    "plugin_name",
    "plugin_type",
    "plugin_version",
    "slurm_spank_exit",
    "slurm_spank_init",
    "slurm_spank_init_failure_mode",
    "slurm_spank_init_post_opt",
    "slurm_spank_job_epilog",
    "slurm_spank_job_prolog",
    "slurm_spank_local_user_init",
    "slurm_spank_task_init",
];

/// All that is called of Slurm; each is there from 22.05 on.
const NEEDED_OF_SLURM: [&str; 14] = [
    "slurm_debug",
    "slurm_debug2",
    "slurm_debug3",
    "slurm_error",
    "slurm_info",
    "slurm_verbose",
    "spank_context",
    "spank_get_item",
    "spank_getenv",
    "spank_job_control_setenv",
    "spank_option_register",
    "spank_setenv",
    "spank_strerror",
    "spank_unsetenv",
];

// B02, B17, A07: no name of libslurm's, and none that a release lacks.
#[test]
fn the_plugin_offers_and_needs_slurm_s_names_only() {
    let path = target_dir().unwrap().join(BUILT_PLUGIN);
    let bytes = std::fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let (mut offered, mut needed) = (BTreeSet::new(), BTreeSet::new());
    for symbol in file.dynamic_symbols() {
        let name = symbol.name().unwrap();
        if symbol.is_undefined() {
            needed.insert(name);
        } else if symbol.is_global() {
            offered.insert(name);
        }
    }
    assert_eq!(offered, BTreeSet::from(OFFERED));
    let of_slurm: BTreeSet<&str> =
        needed.iter().copied().filter(|name| name.contains("slurm") || name.contains("spank")).collect();
    assert!(of_slurm.is_subset(&BTreeSet::from(NEEDED_OF_SLURM)), "{of_slurm:?}");
    // B15: a thread in a process that forks without exec is a deadlock to come.
    for thread in ["pthread_create", "thrd_create", "clone", "clone3"] {
        assert!(!needed.contains(thread), "the plugin starts threads: {thread}");
    }
    // The rest comes from libraries that are there wherever Rust's standard library runs.
    let libraries: Vec<String> = needed_libraries(&bytes);
    assert!(!libraries.is_empty());
    for library in libraries {
        let known = ["libc.so.6", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0", "libdl.so.2"];
        assert!(known.contains(&library.as_str()) || library.starts_with("ld-linux"), "{library}");
    }
}

/// The libraries that the file names as needed.
fn needed_libraries(bytes: &[u8]) -> Vec<String> {
    use object::elf::{DT_NEEDED, FileHeader64};
    use object::read::elf::{Dyn, FileHeader, SectionHeader};
    let header = FileHeader64::<object::Endianness>::parse(bytes).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, bytes).unwrap();
    let (entries, strings) = sections
        .iter()
        .find_map(|section| section.dynamic(endian, bytes).unwrap())
        .map(|(entries, index)| (entries, sections.strings(endian, bytes, index).unwrap()))
        .unwrap();
    let needed = entries.iter().filter(|entry| entry.tag(endian) == DT_NEEDED);
    needed.map(|entry| String::from_utf8_lossy(entry.string(endian, strings).unwrap()).into_owned()).collect()
}
