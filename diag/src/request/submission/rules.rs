//! Holds what was asked against this build and against the site's policy. What the node's copy of the policy
//! makes of it later is in [`crate::request::effective`].

use super::{Merged, Said};
use crate::check::{ALL, CheckName};
use crate::policy::Policy;
use crate::request::FailAction;
use crate::request::effective::{OFF_REFUSED, missing_site_checks, shortened_notice};
use crate::request::mistake::{Mistakes, Origin};
use crate::request::values::{CheckList, RUNTIME_ACTIONS, action_list, name_list};

/// Says of an action of the runtime check, typed without that check, that it changes nothing. (A document's belongs to the
/// document's own part.)
pub(super) fn lone_runtime_action(merged: &Merged, notices: &mut Vec<String>) {
    let asked = merged.runtime.as_ref().is_some_and(|said| said.value);
    if let Some(Said { origin, .. }) = &merged.runtime_fail_action
        && !asked
        && !matches!(origin, Origin::Document { .. })
    {
        notices
            .push(format!("{origin}: without effect, the runtime check is not asked for (--runtime-check)"));
    }
}

/// Refuses, by name, checks that were asked for and that this build can't measure: on the policy's engine, or
/// on none where the policy is not known.
pub(super) fn refuse_unbuilt(checks: &Said<CheckList>, policy: Option<&Policy>, mistakes: &mut Mistakes) {
    let CheckList::Checks { names, .. } = &checks.value else { return };
    let built = |name: &CheckName| match policy {
        Some(policy) => name.spec().engines.contains(&policy.engine),
        None => !name.spec().engines.is_empty(),
    };
    let unbuilt: Vec<CheckName> = names.iter().copied().filter(|name| !built(name)).collect();
    if unbuilt.is_empty() {
        return;
    }
    let engine = policy.map_or_else(String::new, |policy| format!(" for engine {}", policy.engine));
    let usable: Vec<CheckName> = ALL.iter().map(|spec| spec.name).filter(built).collect();
    let right = if usable.is_empty() {
        format!("no check is built{engine}: give off, or ask your admin")
    } else {
        format!("leave them out; built{engine}: {}", name_list(&usable))
    };
    mistakes.push(checks.origin.clone(), format!("not built yet{engine}: {}", name_list(&unbuilt)), right);
}

/// Holds what was asked against the site's policy.
pub(super) fn apply_policy(
    merged: &Merged,
    policy: &Policy,
    notices: &mut Vec<String>,
    mistakes: &mut Mistakes,
) {
    match &merged.checks {
        Some(Said { value: CheckList::Off, origin }) if !policy.checks.users_may_switch_off => {
            mistakes.push(origin.clone(), OFF_REFUSED, "leave it out, or give a list of checks");
        }
        Some(Said { value: CheckList::Checks { names, spelled_out }, origin }) => {
            let missing = missing_site_checks(names, policy);
            if missing.is_empty() {
                // Nothing is left out.
            } else if *spelled_out {
                let wrong =
                    format!("it leaves out what this site wants of every job: {}", name_list(&missing));
                mistakes.push(origin.clone(), wrong, "add these to the list");
            } else {
                notices.push(format!("this site adds {}", name_list(&missing)));
            }
        }
        _ => {}
    }
    let allowed = &policy.actions.allowed;
    let refuse = |said: &Said<FailAction>, allowed: &[FailAction], mistakes: &mut Mistakes| {
        if !allowed.contains(&said.value) {
            let wrong = format!("this site does not allow {}", said.value);
            let right = if allowed.is_empty() {
                format!("leave it out: {} holds here", policy.actions.fail_action)
            } else {
                format!("allowed: {}", action_list(allowed))
            };
            mistakes.push(said.origin.clone(), wrong, right);
        }
    };
    if let Some(said) = &merged.fail_action {
        refuse(said, allowed, mistakes);
    }
    if let Some(said) = &merged.runtime_fail_action {
        // retain changes nothing for anybody: a policy need not allow it.
        let allowed = |action: &FailAction| *action == FailAction::Retain || allowed.contains(action);
        let allowed: Vec<FailAction> = RUNTIME_ACTIONS.iter().copied().filter(allowed).collect();
        refuse(said, &allowed, mistakes);
    }
    if let Some(said) = &merged.timeout_min {
        notices.extend(shortened_notice(said.value, policy).map(|text| format!("{}: {text}", said.origin)));
    }
}
