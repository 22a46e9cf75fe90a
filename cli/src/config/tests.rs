//! What is shown of a policy, and what is found in baseline files.

use super::*;

const SITE: &str = "engine = 'host'\n[time]\njoin_s = 8\n[network.addresses]\n'n.1' = '10.0.0.1'\n[runtime]\n\
                    xid = [{ xid = [13], class = 'gpu', action = 'report' }]\n";

#[test]
fn what_is_shown_is_a_policy_and_says_where_each_value_is_from() {
    let path = Path::new("/etc/aimaster/aimaster.toml");
    let policy = Policy::parse(SITE).unwrap();
    let shown = annotated(&policy.to_toml().unwrap(), path, true, &lines(SITE));
    assert_eq!(Policy::parse(&shown).unwrap(), policy);
    for (key, line) in [("engine = \"host\"", 1), ("join_s = 8", 3), ("\"n.1\" = \"10.0.0.1\"", 5)] {
        let wanted = format!("{key}  # {}:{line}\n", path.display());
        assert!(shown.contains(&wanted), "no {wanted:?} in {shown}");
    }
    assert!(shown.contains("max_deadline_s = 300\n"), "a default has no line");
    assert_eq!(shown.matches("aimaster.toml:7").count(), 1, "{shown}");
    let bare = annotated(&Policy::default().to_toml().unwrap(), path, false, &BTreeMap::new());
    assert!(bare.starts_with("# What holds: this software's defaults") && !bare.contains(".toml:"));
    assert_eq!(Policy::parse(&bare).unwrap(), Policy::default());
}

#[test]
fn programs_get_every_value_with_its_origin() {
    let policy = Policy::parse(SITE).unwrap();
    let text = json(&policy, Path::new("/p.toml"), true, &lines(SITE)).unwrap();
    let told: Value = serde_json::from_str(&text).unwrap();
    let values = &told["values"];
    assert_eq!(values["time.join_s"], serde_json::json!({ "value": 8, "origin": "file", "line": 3 }));
    assert_eq!(values["time.scontrol_s"], serde_json::json!({ "value": 5, "origin": "default" }));
    assert_eq!(values["runtime.xid"]["origin"], "file");
    // Whatever the file can say has its place in what is shown.
    for key in lines(SITE).keys() {
        assert_eq!(values[key]["origin"], "file", "{key}");
    }
}

#[test]
fn the_limits_that_ship_are_fine_and_others_are_shown_by_file() {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf/baselines");
    assert_eq!(baselines(&ours).unwrap(), Vec::new());
    assert!(has_limits(&ours, Engine::Host) && has_limits(&ours, Engine::Cuda));
    assert_eq!(baselines(Path::new("/nowhere")).unwrap(), Vec::new());
    assert!(!has_limits(Path::new("/nowhere"), Engine::Host));
    let folder = tempfile::tempdir().unwrap();
    let limit = "[[limit]]\ncheck='gemm_flops'\nmetric='flops'\nvalue=6200.0\nsource='x'";
    let other = limit.replace("6200.0", "200.0");
    for (name, text) in [
        ("h200.toml", format!("engine='cuda'\ngpu='H200'\n{limit}")),
        ("l40s.toml", format!("engine='cuda'\ngpu='L40S'\n{other}")),
        ("other.toml", "engine=1".into()),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    std::fs::write(folder.path().join("README"), "not a baseline").unwrap();
    let found = baselines(folder.path()).unwrap();
    let told: Vec<(bool, &str)> = found.iter().map(|one| (one.is_error, one.words.as_str())).collect();
    let [(true, physics), (false, unknown), (true, syntax)] = told[..] else { panic!("{found:?}") };
    assert!(physics.starts_with("h200.toml: gemm_flops 6200 TFLOP/s: no part can reach it"), "{found:?}");
    assert!(unknown.starts_with("l40s.toml: no peak rates of a L40S are known"), "{found:?}");
    assert!(syntax.starts_with("other.toml: baseline file: "), "{found:?}");
}
