//! Tests of submissions: what wins over what, and that all mistakes come at once.

use super::*;
use crate::check::{ALL, CheckName};
use crate::facts::Engine;
use crate::request::PAI_CHECKS;
use CheckName::{AllReduce1, AllReduce2, GemmFlops};
use proptest::prelude::*;

const EXAMPLE: &str = include_str!("../../../../conf/aimaster.json");

fn flag(value: &str) -> Given {
    Given { flag: Flag::Value(value.into()), twin: None }
}

fn twin(value: &str) -> Given {
    Given { flag: Flag::Absent, twin: Some(value.into()) }
}

fn bare() -> Given {
    Given { flag: Flag::Bare, twin: None }
}

fn host() -> Policy {
    Policy { engine: Engine::Host, ..Policy::default() }
}

fn lines(inputs: &Inputs, policy: Option<&Policy>) -> Vec<String> {
    resolve(inputs, policy).unwrap_err().iter().map(ToString::to_string).collect()
}

fn sanity(resolved: &Resolved) -> &SanityRequest {
    match &resolved.request.sanity {
        Ask::On(sanity) => sanity,
        other => panic!("{other:?}"),
    }
}

/// A document with these lines in `sanity_check`.
fn document(inner: &str) -> Given {
    flag(&format!(r#"{{"aimaster":{{"sanity_check":{{{inner}}}}}}}"#))
}

#[test]
fn nothing_given_is_nothing_asked() {
    for policy in [None, Some(&host())] {
        let resolved = resolve(&Inputs::default(), policy).unwrap();
        assert!(resolved.request.is_silent() && resolved.notices.is_empty());
    }
}

#[test]
fn a_bare_flag_asks_for_the_default_checks() {
    let inputs = Inputs { sanity_check: bare(), ..Inputs::default() };
    let resolved = resolve(&inputs, Some(&host())).unwrap();
    assert_eq!(sanity(&resolved).checks, [GemmFlops, AllReduce1, AllReduce2]);
    assert_eq!(sanity(&resolved).fail_action, None);
    assert_eq!(sanity(&resolved).timeout_min, None);
}

#[test]
fn a_flag_wins_over_its_twin_and_the_twin_is_not_even_read() {
    let both = |value: &str| Given { flag: Flag::Value(value.into()), twin: Some("nonsense".into()) };
    let inputs = Inputs {
        sanity_check: both("gemm_flops"),
        sanity_fail_action: both("rebuild"),
        sanity_timeout: both("7"),
        runtime_check: both("off"),
        ..Inputs::default()
    };
    let resolved = resolve(&inputs, None).unwrap();
    let wanted = SanityRequest {
        checks: vec![GemmFlops],
        fail_action: Some(FailAction::Requeue),
        timeout_min: Some(7),
    };
    assert_eq!(resolved.request.sanity, Ask::On(wanted));
    assert_eq!(resolved.request.runtime, Ask::Off);
    assert!(resolved.notices.is_empty());
}

#[test]
fn twins_count_where_flags_are_absent() {
    let inputs = Inputs {
        sanity_check: twin("all_reduce_1"),
        sanity_fail_action: twin("IGNORE"),
        sanity_timeout: twin("3"),
        aimaster: twin(r#"{"aimaster": {"sanity_check": {"timeout": 4, "fail_action": "none"}}}"#),
        ..Inputs::default()
    };
    let resolved = resolve(&inputs, None).unwrap();
    assert_eq!(sanity(&resolved).checks, [AllReduce1]);
    assert_eq!(sanity(&resolved).timeout_min, Some(3));
    assert_eq!(
        resolved.notices,
        ["AIMASTER_SANITY_TIMEOUT: 3 wins over the document's aimaster.sanity_check.timeout: 4"]
    );
}

#[test]
fn lone_actions_and_times_are_kept_for_the_sites_checks() {
    let inputs = Inputs { sanity_fail_action: flag("drain"), sanity_timeout: flag("2"), ..Inputs::default() };
    let resolved = resolve(&inputs, Some(&host())).unwrap();
    assert_eq!(resolved.request.sanity, Ask::Site);
    assert_eq!(resolved.request.lone_fail_action, Some(FailAction::Drain));
    assert_eq!(resolved.request.lone_timeout_min, Some(2));
    assert_eq!(Request::decode(&resolved.request.encode().unwrap()).unwrap(), resolved.request);
}

#[test]
fn where_flag_and_document_disagree_the_flag_wins_with_a_notice() {
    let inputs = Inputs {
        sanity_check: flag("gemm_flops"),
        sanity_fail_action: flag("ignore"),
        sanity_timeout: flag("9"),
        aimaster: document(r#""micro_benchmarks": "all_reduce_1", "fail_action": "retain", "timeout": 4"#),
        ..Inputs::default()
    };
    let resolved = resolve(&inputs, None).unwrap();
    assert_eq!(sanity(&resolved).checks, [GemmFlops]);
    assert_eq!(sanity(&resolved).timeout_min, Some(9));
    assert_eq!(
        resolved.notices,
        [
            "--sanity-check: gemm_flops wins over the document's aimaster.sanity_check.micro_benchmarks: \
             all_reduce_1",
            "--sanity-timeout: 9 wins over the document's aimaster.sanity_check.timeout: 4",
        ]
    );
    let off = Inputs { sanity_check: flag("off"), ..inputs };
    let resolved = resolve(&off, None).unwrap();
    assert_eq!(resolved.request.sanity, Ask::Off);
    assert_eq!(resolved.notices.len(), 2);
}

#[test]
fn a_section_without_a_list_asks_for_the_default_checks() {
    let inputs = Inputs { aimaster: document(r#""timeout": "4""#), ..Inputs::default() };
    let resolved = resolve(&inputs, None).unwrap();
    assert_eq!(sanity(&resolved).checks, [GemmFlops, AllReduce1, AllReduce2]);
    assert_eq!(sanity(&resolved).timeout_min, Some(4));
}

#[test]
fn the_example_is_refused_only_for_checks_that_are_not_built_and_names_each() {
    let inputs = Inputs { aimaster: flag(EXAMPLE), ..Inputs::default() };
    let specs = PAI_CHECKS.iter().map(|name| name.spec());
    let unbuilt: Vec<&str> = specs.filter(|spec| spec.engines.is_empty()).map(|spec| spec.text).collect();
    if unbuilt.is_empty() {
        assert_eq!(sanity(&resolve(&inputs, None).unwrap()).checks, PAI_CHECKS);
        return;
    }
    let lines = lines(&inputs, None);
    assert_eq!(lines.len(), 1, "{lines:?}");
    let place = "aimaster.sanity_check.micro_benchmarks: not built yet: ";
    let (_, rest) = lines[0].split_once(place).unwrap();
    assert_eq!(rest.split(';').next().unwrap(), unbuilt.join(", "));
}

#[test]
fn with_a_policy_a_check_must_be_built_for_its_engine() {
    let cuda = Policy::default();
    let lacks = ALL.iter().find(|spec| !spec.engines.contains(&Engine::Cuda));
    if let Some(lacks) = lacks {
        let inputs = Inputs { sanity_check: flag(lacks.text), ..Inputs::default() };
        let wrong = format!("--sanity-check: not built yet for engine cuda: {}; ", lacks.text);
        assert!(lines(&inputs, Some(&cuda))[0].starts_with(&wrong));
    }
    let inputs = Inputs { sanity_check: flag("gemm_flops"), ..Inputs::default() };
    assert!(resolve(&inputs, Some(&host())).is_ok());
}

#[test]
fn c4d_is_asked_for_by_flag_twin_and_document() {
    let on = |fail_action| Ask::On(RuntimeRequest { fail_action });
    for given in [bare(), flag("c4d"), flag("C4D"), twin("c4d")] {
        let inputs = Inputs { runtime_check: given, ..Inputs::default() };
        let resolved = resolve(&inputs, None).unwrap();
        assert_eq!((resolved.request.runtime, resolved.notices.len()), (on(None), 0));
    }
    for (part, action) in
        [(r#"{"micro_benchmarks": "c4d", "fail_action": "retain"}"#, Some(FailAction::Retain)), ("{}", None)]
    {
        let text = format!(r#"{{"aimaster": {{"runtime_check": {part}}}}}"#);
        let inputs = Inputs { aimaster: flag(&text), ..Inputs::default() };
        let resolved = resolve(&inputs, None).unwrap();
        assert_eq!((resolved.request.runtime, resolved.notices.len()), (on(action), 0));
        let resolved = resolve(&Inputs { runtime_check: flag("off"), ..inputs }, None).unwrap();
        assert_eq!(resolved.request.runtime, Ask::Off);
    }
    let lone = Inputs { runtime_fail_action: flag("retain"), ..Inputs::default() };
    assert!(resolve(&lone, None).unwrap().notices[0].starts_with("--runtime-fail-action: without effect"));
    let both = Inputs { runtime_check: bare(), ..lone };
    let resolved = resolve(&both, None).unwrap();
    assert_eq!((resolved.request.runtime, resolved.notices.len()), (on(Some(FailAction::Retain)), 0));
}

#[test]
fn all_mistakes_of_all_inputs_come_at_once() {
    let inputs = Inputs {
        sanity_check: flag("gemm_flop,nonsense!"),
        sanity_fail_action: bare(),
        sanity_timeout: flag("0"),
        runtime_check: twin("c5d"),
        runtime_fail_action: flag("fail"),
        aimaster: flag("job.json"),
        document: Some(Ok(br#"{"aimaster": {"sanity_check": {"timeout": -1, "x": 1}}}"#.to_vec())),
    };
    let lines = lines(&inputs, Some(&host()));
    let starts = [
        "--aimaster=job.json: aimaster.sanity_check.timeout: -1 is not a timeout; give whole minutes",
        "--aimaster=job.json: aimaster.sanity_check.x: \"x\" is unknown here; known: ",
        "--sanity-check: there is no check \"gemm_flop\"; did you mean gemm_flops? known: gemm_flops, ",
        "--sanity-check: there is no check \"nonsense!\"; known: ",
        "--sanity-fail-action: the value is missing; give --sanity-fail-action=VALUE",
        "--sanity-timeout: \"0\" is not a timeout",
        "AIMASTER_RUNTIME_CHECK: there is no runtime check \"c5d\"; did you mean c4d?",
        "--runtime-fail-action: \"fail\" is not an action that can stand here",
    ];
    assert_eq!(lines.len(), starts.len(), "{lines:#?}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{line}\n{start}");
    }
}

#[test]
fn an_argument_that_starts_with_a_brace_is_the_document_itself() {
    let source = |given: Given| {
        let inputs = Inputs { aimaster: given, ..Inputs::default() };
        format!("{:?}", inputs.document_source())
    };
    assert_eq!(source(flag(" \n{}")), "Inline(\" \\n{}\")");
    assert_eq!(source(flag("a/{b}.json")), "File(\"a/{b}.json\")");
    assert_eq!(source(twin("/etc/x")), "File(\"/etc/x\")");
    assert_eq!(source(Given { flag: Flag::Value("a".into()), twin: Some("{}".into()) }), "File(\"a\")");
    for none in [flag(" "), bare(), Given::default(), Given { flag: Flag::Bare, twin: Some("a".into()) }] {
        assert_eq!(source(none), "None");
    }
}

#[test]
fn a_document_that_can_not_be_read_is_a_mistake_of_its_flag() {
    let unread = |aimaster: Given, document| lines(&Inputs { aimaster, document, ..Inputs::default() }, None);
    let why = "No such file or directory".to_owned();
    assert_eq!(
        unread(flag("a\nb"), Some(Err(why))),
        [
            "--aimaster: a\\nb can't be read: No such file or directory; give a readable file, or the JSON itself"
        ]
    );
    assert_eq!(unread(twin("x"), None).len(), 1);
    assert!(unread(bare(), None)[0].starts_with("--aimaster: the value is missing"));
    assert!(unread(twin(""), None)[0].starts_with("AIMASTER_CONFIG: the value is empty"));
    assert!(unread(flag("x"), Some(Ok(b"{".to_vec())))[0].starts_with("--aimaster=x: line 1, column "));
}

#[test]
fn the_policy_forbids_actions_off_and_leaving_checks_out() {
    let mut policy = host();
    policy.actions.allowed = vec![FailAction::Retain, FailAction::Fail];
    policy.checks.always = vec![GemmFlops, AllReduce1];
    policy.checks.users_may_weaken = false;
    policy.checks.users_may_switch_off = false;
    let list = Inputs {
        sanity_check: flag("all_reduce_2,gemm_flops"),
        sanity_fail_action: twin("requeue"),
        runtime_fail_action: flag("drain"),
        ..Inputs::default()
    };
    let starts = [
        "--sanity-check: it leaves out what this site wants of every job: all_reduce_1; add",
        "AIMASTER_SANITY_FAIL_ACTION: this site does not allow requeue; allowed: retain, fail",
        "--runtime-fail-action: this site does not allow drain; allowed: retain",
    ];
    let found = lines(&list, Some(&policy));
    assert_eq!(found.len(), starts.len(), "{found:#?}");
    for (line, start) in found.iter().zip(starts) {
        assert!(line.starts_with(start), "{line}\n{start}");
    }
    assert!(resolve(&list, None).is_ok());
    let off = Inputs { sanity_check: flag("off"), ..Inputs::default() };
    assert!(lines(&off, Some(&policy))[0].starts_with("--sanity-check: this site does not allow off"));
    policy.checks.always = vec![CheckName::NetworkConnectivity];
    let plain = Inputs { sanity_check: bare(), ..Inputs::default() };
    assert_eq!(resolve(&plain, Some(&policy)).unwrap().notices, ["this site adds network_connectivity"]);
}

#[test]
fn a_cap_shortens_and_never_refuses() {
    let inputs = Inputs {
        aimaster: document(r#""micro_benchmarks": "gemm_flops", "timeout": 100"#),
        ..Inputs::default()
    };
    let resolved = resolve(&inputs, Some(&host())).unwrap();
    assert_eq!(sanity(&resolved).timeout_min, Some(100));
    assert_eq!(
        resolved.notices,
        ["document: aimaster.sanity_check.timeout: a timeout of 100 min is shortened to this site's 300 s"]
    );
    let fits = Inputs { sanity_check: bare(), sanity_timeout: flag("5"), ..Inputs::default() };
    assert!(resolve(&fits, Some(&host())).unwrap().notices.is_empty());
}

fn any_given() -> impl Strategy<Value = Given> {
    let text = "(gemm_flops|all|off|c4d|retain|5|,| |\\{|\\}|\"aimaster\"|:|.){0,6}";
    let flag = prop_oneof![Just(Flag::Absent), Just(Flag::Bare), text.prop_map(Flag::Value)];
    (flag, prop::option::of(text)).prop_map(|(flag, twin)| Given { flag, twin })
}

proptest! {
    #[test]
    fn any_input_gives_a_request_that_travels_or_lines_for_a_terminal(
        given in prop::array::uniform6(any_given()), strict in any::<bool>()
    ) {
        let [sanity_check, sanity_fail_action, sanity_timeout, runtime_check, runtime_fail_action, aimaster] = given;
        let inputs = Inputs {
            sanity_check, sanity_fail_action, sanity_timeout, runtime_check, runtime_fail_action, aimaster,
            document: Some(Err("not here".into())),
        };
        let policy = host();
        match resolve(&inputs, strict.then_some(&policy)) {
            Ok(Resolved { request, notices }) => {
                prop_assert_eq!(&Request::decode(&request.encode().unwrap()).unwrap(), &request);
                prop_assert!(notices.iter().all(|notice| !notice.contains(char::is_control)));
            }
            Err(list) => {
                prop_assert!(!list.is_empty());
                prop_assert!(list.iter().all(|mistake| !mistake.to_string().contains(char::is_control)));
            }
        }
    }
}
