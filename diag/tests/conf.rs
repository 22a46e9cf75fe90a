//! Every file that ships in `conf/` can be read, and every check that can be measured has a limit, or a written
//! none.

use std::path::Path;

use diag::baseline::Baselines;
use diag::check::ALL;

#[test]
fn every_check_has_a_limit_or_a_written_none_in_each_baseline() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf/baselines");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let baselines = Baselines::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
        for spec in ALL.iter().filter(|spec| spec.engines.contains(&baselines.engine)) {
            let limit = baselines.limits.iter().any(|limit| limit.check == spec.name);
            let none = baselines.none.iter().any(|none| none.check == spec.name);
            assert!(limit != none, "{}: {} wants a limit or a none, and not both", path.display(), spec.text);
        }
        let sourced = baselines.limits.iter().all(|limit| !limit.source.trim().is_empty());
        assert!(sourced, "{}: a limit without a source", path.display());
        files += 1;
    }
    assert!(files > 0);
}
