//! What a user gives at submission (flags, environment twins, document) under a site's policy, and what a job's control
//! environment carries.
//!
//! A file is a list of inputs: `<option><how><text>`, where the option is a digit, and how it was given is `=`, `-`
//! (bare) or `$` (the environment twin); `D<document's file>`, `P<policy>`, `R<AIMASTER_REQUEST>`.

use diag::policy::Policy;
use diag::request::effective::effective;
use diag::request::submission::{Flag, Given, Inputs, resolve};
use diag::request::{Ask, Request};

use crate::holds;

/// Longest notice: names of all checks twice.
const MOST_NOTICE_BYTES: usize = 2048;

/// What may be queued can be sent and arrives as it was, and the policy's bounds hold for whatever arrives.
pub fn run(data: &[u8]) {
    let mut inputs = Inputs::default();
    let mut policy = Policy::default();
    let mut sent = Vec::new();
    for part in holds::parts(data) {
        match part {
            [b'D', bytes @ ..] => inputs.document = Some(Ok(bytes.to_vec())),
            [b'P', bytes @ ..] => policy = Policy::parse(&holds::text(bytes)).unwrap_or(policy),
            [b'R', bytes @ ..] => sent.push(holds::text(bytes)),
            [option, how, bytes @ ..] => give(&mut inputs, *option, *how, &holds::text(bytes)),
            _ => {}
        }
    }
    for text in sent {
        match Request::decode(&text) {
            Ok(request) => {
                assert_eq!(request.encode().unwrap(), text);
                arrived(&request, &policy);
            }
            Err(error) => holds::line(&error.to_string(), 300),
        }
    }
    for site in [None, Some(&policy)] {
        let resolved = resolve(&inputs, site);
        assert_eq!(resolved, resolve(&inputs, site));
        let resolved = match resolved {
            Ok(resolved) => resolved,
            Err(list) => {
                holds::mistakes(&list);
                continue;
            }
        };
        resolved.notices.iter().for_each(|notice| holds::line(notice, MOST_NOTICE_BYTES));
        let text = resolved.request.encode().unwrap();
        assert_eq!(Request::decode(&text).unwrap(), resolved.request);
        arrived(&resolved.request, &policy);
    }
}

fn give(inputs: &mut Inputs, option: u8, how: u8, text: &str) {
    let given: &mut Given = match option {
        b'0' => &mut inputs.sanity_check,
        b'1' => &mut inputs.sanity_fail_action,
        b'2' => &mut inputs.sanity_timeout,
        b'3' => &mut inputs.runtime_check,
        b'4' => &mut inputs.runtime_fail_action,
        b'5' => &mut inputs.aimaster,
        _ => return,
    };
    match how {
        b'=' => given.flag = Flag::Value(text.to_owned()),
        b'-' => given.flag = Flag::Bare,
        _ => given.twin = Some(text.to_owned()),
    }
}

/// What a request comes to on a node.
fn arrived(request: &Request, policy: &Policy) {
    let gets = effective(request, policy);
    assert_eq!(gets, effective(request, policy));
    assert!(
        gets.checks.is_sorted_by(|a, b| a < b) && gets.unbuilt.iter().all(|one| gets.checks.contains(one))
    );
    assert!(gets.checks.iter().all(|one| gets.source_of(*one).is_some()));
    assert!(gets.timeout_s >= 1 && gets.timeout_s <= policy.time.max_deadline_s);
    let allowed = &policy.actions.allowed;
    assert!(allowed.contains(&gets.fail_action) || gets.fail_action == policy.actions.fail_action);
    if !policy.checks.users_may_weaken && request.sanity != Ask::Off {
        assert!(policy.checks.always.iter().all(|one| gets.checks.contains(one)));
    }
    assert!(gets.watch.is_none() || policy.runtime.enabled);
    gets.notices.iter().for_each(|notice| holds::line(notice, MOST_NOTICE_BYTES));
}
