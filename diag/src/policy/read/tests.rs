//! Tests of the policy file: defaults, every mistake at once, ranges, and that `conf/aimaster.toml` says what
//! the code does.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::*;
use crate::policy::HCA;
use proptest::prelude::*;

const SHIPPED: &str = include_str!("../../../../conf/aimaster.toml");

fn wrong(text: &str) -> Vec<String> {
    Policy::parse(text).unwrap_err().iter().map(ToString::to_string).collect()
}

/// The shipped file with its settings no longer commented out: they start right behind the sign, prose does not.
fn uncommented() -> String {
    let is_setting = |rest: &&str| rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[');
    SHIPPED
        .lines()
        .map(|line| line.strip_prefix('#').filter(is_setting).unwrap_or(line))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Paths of everything in a tree that is no table, or an empty one.
fn paths(value: &serde_json::Value, at: &str, found: &mut BTreeSet<String>) {
    match value.as_object().filter(|table| !table.is_empty()) {
        Some(table) => table.iter().for_each(|(key, value)| paths(value, &format!("{at}.{key}"), found)),
        None => drop(found.insert(at.to_owned())),
    }
}

#[test]
fn nothing_written_is_the_default() {
    assert_eq!(Policy::parse("").unwrap(), Policy::default());
    assert_eq!(Policy::parse(SHIPPED).unwrap(), Policy::default());
}

#[test]
fn the_shipped_file_has_every_key_with_its_default() {
    let text = uncommented();
    assert_eq!(Policy::parse(&text).unwrap(), Policy::default());
    let table: toml::Table = toml::from_str(&text).unwrap();
    let (mut written, mut known) = (BTreeSet::new(), BTreeSet::new());
    paths(&serde_json::to_value(table).unwrap(), "", &mut written);
    paths(&serde_json::to_value(Policy::default()).unwrap(), "", &mut known);
    assert_eq!(written, known);
}

#[test]
fn a_changed_default_in_the_shipped_file_is_seen() {
    // Each value on its own line is really read: another one makes another policy or a mistake.
    for line in uncommented().lines().filter(|line| line.contains(" = ") && !line.starts_with('#')) {
        let (key, value) = line.split_once(" = ").unwrap();
        let other = match value {
            "true" => "false".to_owned(),
            "false" => "true".to_owned(),
            text if text.starts_with('"') => format!("\"/x{}", &text[1..]),
            list if list.starts_with('[') => "[\"gemm_flops\"]".to_owned(),
            number => format!("{number}1"),
        };
        let text = uncommented().replace(line, &format!("{key} = {other}"));
        assert_ne!(Policy::parse(&text).ok(), Some(Policy::default()), "{line}");
    }
}

#[test]
fn a_full_policy_is_read() {
    let policy = Policy::parse(
        r#"
        engine = "host"
        [scope]
        partitions = ["gpu", "gpu", "lingjun"]
        [checks]
        always = ["all_reduce_2", "GEMM_FLOPS"]
        users_may_weaken = false
        [actions]
        fail_action = "rebuild"
        allowed = ["ignore", "requeue"]
        drain_on = []
        max_drain_fraction = 1
        requeue_nice = -100
        on_error = "fail"
        on_environment = "start"
        on_controller_lost = "hold"
        [network]
        port_first = 50_000
        port_last = 50_015
        addresses = { n1 = "10.0.0.1", "n2.x" = "fd00::1" }
        [host]
        seconds_per_check = 2
        [paths]
        libmunge = "/opt/lib/libmunge.so.2"
        [nccl.env]
        NCCL_SOCKET_IFNAME = "bond0"
        "#,
    )
    .unwrap();
    assert_eq!(policy.engine, Engine::Host);
    assert_eq!(policy.scope.partitions, ["gpu", "lingjun"]);
    assert_eq!(policy.checks.always, [CheckName::GemmFlops, CheckName::AllReduce2]);
    assert!(!policy.checks.users_may_weaken && policy.checks.users_may_switch_off);
    assert_eq!(policy.actions.fail_action, FailAction::Requeue);
    assert_eq!(policy.actions.allowed, [FailAction::Retain, FailAction::Requeue]);
    assert!(policy.actions.drain_on.is_empty());
    assert_eq!(policy.actions.requeue_nice, Some(-100));
    assert_eq!(policy.actions.on_error, Undecided::Fail);
    assert_eq!(policy.actions.on_environment, Some(Undecided::Start));
    assert_eq!(policy.actions.on_controller_lost, ControllerLost::Hold);
    assert_eq!(policy.network.addresses["n2.x"], "fd00::1".parse::<IpAddr>().unwrap());
    assert_eq!(policy.network.port_last, 50_015);
    assert_eq!(policy.paths.libmunge, PathBuf::from("/opt/lib/libmunge.so.2"));
    assert_eq!(policy.nccl_env["NCCL_SOCKET_IFNAME"], "bond0");
    assert_eq!(Policy::parse(&policy.to_toml().unwrap()).unwrap(), policy);
    let shown = Policy::default().to_toml().unwrap();
    assert_eq!(Policy::parse(&shown).unwrap(), Policy::default());
    // Every default is shown, those too that leave something alone.
    for line in ["requeue_nice = \"keep\"", "on_environment = \"by_action\""] {
        assert!(shown.contains(line), "{shown}");
    }
}

#[test]
fn every_mistake_comes_at_once_by_path_and_line() {
    let lines = wrong(
        "engin = \"host\"\n[actions]\nmax_requeue = 3\nallowed = [\"drain\", \"explode\"]\non_error = 5\n\
         [tme]\n[time]\njoin_s = 500\njob_poll_s = 9\n[network]\nport_last = 27001\n",
    );
    let starts = [
        "policy line 4: actions.allowed[1]: \"explode\" is not an action",
        "policy line 5: actions.on_error: 5 is not accepted; give one of: start, fail",
        "policy line 3: actions.max_requeue: \"max_requeue\" is unknown here; did you mean max_requeues?",
        "policy line 9: time.job_poll_s: 9 is not accepted; give a whole number from 1 to 4",
        "policy line 1: engin: \"engin\" is unknown here; did you mean engine?",
        "policy line 6: tme: \"tme\" is unknown here; did you mean time?",
        "policy: time.join_s: 500 is not below time.max_deadline_s (300)",
        "policy: network.port_last: 27000 to 27001 are fewer than 16 ports",
    ];
    assert_eq!(lines.len(), starts.len(), "{lines:#?}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{line}\n{start}");
    }
}

#[test]
fn what_is_not_toml_is_refused_by_line() {
    assert!(wrong("[time\njoin_s = 3")[0].starts_with("policy line 1: not TOML"));
    let twice = wrong("a = 1\n[time]\njoin_s = 3\njoin_s = 4");
    assert!(twice[0].starts_with("policy line 4: not TOML: duplicate key"), "{twice:?}");
    let both = wrong("x = = 1\ny = \"\n");
    for line in ["policy line 1: not TOML", "policy line 2: not TOML"] {
        assert!(both.iter().any(|wrong| wrong.starts_with(line)), "{both:?}");
    }
    assert!(!wrong(&format!("x = {}", "[".repeat(100_000))).is_empty());
    assert!(wrong(&" ".repeat(crate::policy::MAX_POLICY_BYTES + 1))[0].contains("4 MiB"));
}

#[test]
fn values_out_of_range_are_refused() {
    let cases = [
        "engine = \"gpu\"",
        "engine = true",
        "[scope]\npartitions = \"gpu\"",
        "[scope]\npartitions = [\"a,b\"]",
        "[checks]\nalways = [\"gemm\"]",
        "engine = \"host\"\n[checks]\nalways = [\"off\"]",
        "[checks]\nusers_may_weaken = \"no\"",
        "[actions]\nfail_action = \"explode\"",
        "[actions]\ndrain_on = [\"retain\"]",
        "[actions]\nmax_drain_nodes = -1",
        "[actions]\nmax_drain_fraction = 0",
        "[actions]\nmax_drain_fraction = 1.01",
        "[actions]\nmax_drain_fraction = nan",
        "[actions]\nrequeue_nice = \"low\"",
        "[actions]\nrequeue_nice = 3000000000",
        "[actions]\non_error = \"hold\"",
        "[time]\njoin_s = 0",
        "[time]\njoin_s = 1979-05-27",
        "[time]\njob_poll_s = 5",
        "[time]\njob_poll_s = 0",
        "[time]\njob_poll_s = 2.0",
        "[time]\nmax_deadline_s = 60",
        "[time]\nmax_deadline_s = 99999999999999999999999999999999999999999999",
        "[network]\nport_first = 80",
        "[network]\nport_first = 27185",
        "[network]\nport_last = 70000",
        "[network]\nport_last = 26000",
        "[scope]\ngpu_types = [\"h200\"]",
        "[network]\ninterface = \"a-very-long-name-of-one\"",
        "[network]\naddresses = { n1 = \"10.0.0\" }",
        "[network]\naddresses = { n1 = \"0.0.0.0\" }",
        "[network]\naddresses = { \"a b\" = \"10.0.0.1\" }",
        "[host]\nranks_per_node = 0",
        "[host]\nranks_per_node = 16\n[network]\nport_last = 27015",
        "[host]\nseconds_per_check = inf",
        "[host]\nseconds_per_check = 0",
        "[host]\nseconds_per_check = 61",
        "[time]\nmax_deadline_s = 61\n[host]\nseconds_per_check = 31",
        "[time]\nmax_deadline_s = 61\n[cuda]\nseconds_per_check = 31",
        "[time]\njoin_s = 2\nscontrol_s = 2\nmax_deadline_s = 4",
        "[paths]\nscontrol = \"scontrol\"",
        "[paths]\nscontrol = \"\"",
        "[paths]\nlibmunge = \"lib/libmunge.so\"",
        "[paths]\nworker_user = \"root\"",
        "[paths]\nworker_user = \"0\"",
        "[paths]\nmunge_socket = \"x\"",
        "[nccl.env]\nnccl_debug = \"INFO\"",
        "[nccl.env]\nNCCL_DEBUG = 1",
        "[nccl.env]\nNCCL_DEBUG = \"a\\nb\"",
        "[nccl]\nenvironment = {}",
        "nccl = 3",
    ];
    for text in cases {
        assert_eq!(wrong(text).len(), 1, "{text}: {:?}", Policy::parse(text));
    }
}

#[test]
fn checks_for_every_job_must_be_built_for_the_engine() {
    for (engine, text) in [(Engine::Host, "host"), (Engine::Cuda, "cuda")] {
        let parsed = Policy::parse(&format!("engine = \"{text}\"\nchecks.always = [\"all\"]"));
        let lacks = ALL.iter().any(|spec| !spec.engines.contains(&engine));
        assert_eq!(parsed.is_err(), lacks);
    }
}

proptest! {
    #[test]
    fn any_text_gives_a_policy_or_mistakes(text in "(\\[|\\]|time|join_s|checks|always|=|\"|[0-9]|\n| |.){0,30}") {
        if let Err(list) = Policy::parse(&text) {
            prop_assert!(!list.is_empty());
            prop_assert!(list.iter().all(|mistake| !mistake.to_string().contains(char::is_control)));
        }
    }
}

#[test]
fn only_whole_names_name_a_device() {
    let of = |value: &str| {
        let nccl_env = BTreeMap::from([(HCA.to_owned(), value.to_owned())]);
        Policy { nccl_env, ..Policy::default() }.named_rdma()
    };
    assert_eq!(of("=mlx5_0:1, mlx5_3,"), ["mlx5_0", "mlx5_3"].map(str::to_owned).into());
    for other in ["mlx5", "^mlx5_0", "^=mlx5_0", "", "="] {
        assert!(of(other).is_empty(), "{other}");
    }
    assert!(Policy::default().named_rdma().is_empty());
}
