//! What a job really gets: the request under the node's copy of the policy. The prolog calls it; it never
//! fails: a request that goes beyond the policy is clamped with a notice, because the job is already there.
//! Whether the job is in the policy's scope is decided by the caller.

use std::collections::BTreeMap;

use crate::check::CheckName;
use crate::policy::Policy;
use crate::request::values::name_list;
use crate::request::{Ask, FailAction, Request};

/// Who wanted something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The user, and not the site.
    User,
    /// The site: its policy, or the built-in default that it left alone.
    Site,
}

/// The check while the job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watch {
    /// What happens on a fault.
    pub fail_action: FailAction,
}

/// What runs before start, and while the job runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effective {
    /// Checks in registry order; empty: nothing was asked for and there is nothing to do.
    pub checks: Vec<CheckName>,
    /// Who wanted each of them; one that the site always runs is the site's, also when the user asked as well.
    pub check_sources: BTreeMap<CheckName, Source>,
    /// Those of `checks` that this build can't measure on the policy's engine. They are an ERROR, not a skip:
    /// somebody asked for them.
    pub unbuilt: Vec<CheckName>,
    /// What happens on a FAIL.
    pub fail_action: FailAction,
    /// Who chose it.
    pub fail_action_source: Source,
    /// Longest run of the suite.
    pub timeout_s: u32,
    /// Who chose it; a request that the site's cap shortened is the site's.
    pub timeout_source: Source,
    /// The check while the job runs; `None`: it is not asked for, or switched off.
    pub watch: Option<Watch>,
    /// Where the policy changed what was asked, one line each.
    pub notices: Vec<String>,
}

/// Minutes of a suite where nobody said anything.
pub const DEFAULT_TIMEOUT_MIN: u32 = 5;

/// Said where `off` is not allowed.
pub(super) const OFF_REFUSED: &str = "this site does not allow off";

impl Effective {
    /// Who wanted a check.
    #[must_use]
    pub fn source_of(&self, check: CheckName) -> Option<Source> {
        self.check_sources.get(&check).copied()
    }
}

/// What a job with this request gets under this policy.
#[must_use]
pub fn effective(request: &Request, policy: &Policy) -> Effective {
    let mut notices = Vec::new();
    let check_sources = checks_that_run(request, policy, &mut notices);
    let checks: Vec<CheckName> = check_sources.keys().copied().collect();
    let (action, minutes) = match &request.sanity {
        Ask::On(sanity) => (sanity.fail_action, sanity.timeout_min),
        Ask::Site | Ask::Off => (request.lone_fail_action, request.lone_timeout_min),
    };
    let (fail_action, fail_action_source, action_notice) = action_that_holds(action, policy);
    let (timeout_s, timeout_source, time_notice) = time_that_holds(minutes, policy);
    let unbuilt: Vec<CheckName> =
        checks.iter().copied().filter(|name| !name.spec().engines.contains(&policy.engine)).collect();
    if !checks.is_empty() {
        // Where nothing runs, an action or a time limit changes nothing, and nobody needs to hear of it.
        notices.extend(action_notice);
        notices.extend(time_notice);
    }
    if !unbuilt.is_empty() {
        notices.push(format!("not built yet for engine {}: {}", policy.engine, name_list(&unbuilt)));
    }
    let watch = watch_that_holds(request, policy, &mut notices);
    Effective {
        checks,
        check_sources,
        unbuilt,
        fail_action,
        fail_action_source,
        timeout_s,
        timeout_source,
        watch,
        notices,
    }
}

fn watch_that_holds(request: &Request, policy: &Policy, notices: &mut Vec<String>) -> Option<Watch> {
    let asked = match &request.runtime {
        Ask::On(asked) => asked.fail_action,
        Ask::Site if policy.runtime.always => None,
        Ask::Site | Ask::Off => return None,
    };
    if !policy.runtime.enabled {
        // Where only the site asked for it, nobody misses it.
        if matches!(request.runtime, Ask::On(_)) {
            notices.push("this site has switched the runtime check off (runtime.enabled)".to_owned());
        }
        return None;
    }
    let fail_action = match asked {
        Some(action) if !policy.actions.allowed.contains(&action) => {
            notices.push(format!("this site does not allow {action} for the runtime check: retain holds"));
            FailAction::Retain
        }
        action => action.unwrap_or(FailAction::Retain),
    };
    Some(Watch { fail_action })
}

/// What every job gets and this list leaves out, where the policy forbids that.
pub(super) fn missing_site_checks(names: &[CheckName], policy: &Policy) -> Vec<CheckName> {
    if policy.checks.users_may_weaken {
        return Vec::new();
    }
    policy.checks.always.iter().copied().filter(|name| !names.contains(name)).collect()
}

/// Says that the site's cap shortens this many minutes, if it does.
pub(super) fn shortened_notice(minutes: u32, policy: &Policy) -> Option<String> {
    let cap_s = policy.time.max_deadline_s;
    (seconds(minutes) > u64::from(cap_s))
        .then(|| format!("a timeout of {minutes} min is shortened to this site's {cap_s} s"))
}

fn seconds(minutes: u32) -> u64 {
    u64::from(minutes) * 60
}

fn checks_that_run(
    request: &Request,
    policy: &Policy,
    notices: &mut Vec<String>,
) -> BTreeMap<CheckName, Source> {
    let always = &policy.checks.always;
    let of_site = || always.iter().map(|name| (*name, Source::Site)).collect::<BTreeMap<_, _>>();
    match &request.sanity {
        Ask::Site => of_site(),
        Ask::Off if policy.checks.users_may_switch_off || always.is_empty() => BTreeMap::new(),
        Ask::Off => {
            notices.push(format!("{OFF_REFUSED}: it runs {}", name_list(always)));
            of_site()
        }
        Ask::On(sanity) => {
            let source = |name| if always.contains(name) { Source::Site } else { Source::User };
            let mut checks: BTreeMap<_, _> = sanity.checks.iter().map(|name| (*name, source(name))).collect();
            let missing = missing_site_checks(&sanity.checks, policy);
            if !missing.is_empty() {
                notices.push(format!("this site adds {}", name_list(&missing)));
                checks.extend(missing.into_iter().map(|name| (name, Source::Site)));
            }
            checks
        }
    }
}

fn action_that_holds(asked: Option<FailAction>, policy: &Policy) -> (FailAction, Source, Option<String>) {
    let site = policy.actions.fail_action;
    match asked {
        Some(action) if policy.actions.allowed.contains(&action) => (action, Source::User, None),
        Some(action) => {
            let notice = format!("this site does not allow {action}: {site} holds");
            (site, Source::Site, Some(notice))
        }
        None => (site, Source::Site, None),
    }
}

fn time_that_holds(asked_min: Option<u32>, policy: &Policy) -> (u32, Source, Option<String>) {
    let cap_s = policy.time.max_deadline_s;
    let wanted_s = u32::try_from(seconds(asked_min.unwrap_or(DEFAULT_TIMEOUT_MIN))).unwrap_or(u32::MAX);
    let source = if asked_min.is_some() && wanted_s <= cap_s { Source::User } else { Source::Site };
    // Nobody asked for the default: that it is shortened is no news to anybody.
    let notice = asked_min.and_then(|minutes| shortened_notice(minutes, policy));
    (wanted_s.min(cap_s), source, notice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Engine;
    use crate::request::SanityRequest;
    use CheckName::{AllReduce1, AllReduce2, GemmFlops};

    fn policy(always: &[CheckName]) -> Policy {
        let mut policy = Policy { engine: Engine::Host, ..Policy::default() };
        policy.checks.always = always.to_vec();
        policy
    }

    fn asks(checks: &[CheckName]) -> Request {
        let sanity = SanityRequest { checks: checks.to_vec(), fail_action: None, timeout_min: None };
        Request { sanity: Ask::On(sanity), ..Request::default() }
    }

    #[test]
    fn nothing_asked_and_nothing_wanted_is_nothing() {
        let lone = Request {
            lone_fail_action: Some(FailAction::Requeue),
            lone_timeout_min: Some(1000),
            ..Request::default()
        };
        let mut policy = policy(&[]);
        policy.actions.allowed.clear();
        policy.checks.users_may_switch_off = false;
        for request in [Request::default(), lone, Request { sanity: Ask::Off, ..Request::default() }] {
            let effective = effective(&request, &policy);
            assert!(effective.checks.is_empty() && effective.notices.is_empty(), "{effective:?}");
        }
    }

    #[test]
    fn a_job_is_watched_where_the_user_or_the_site_wants_it_and_the_site_has_not_switched_it_off() {
        let mut policy = policy(&[]);
        let on = |fail_action| Request {
            runtime: Ask::On(crate::request::RuntimeRequest { fail_action }),
            ..Request::default()
        };
        let retain = Some(Watch { fail_action: FailAction::Retain });
        assert_eq!(effective(&on(None), &policy).watch, retain);
        let drain = effective(&on(Some(FailAction::Drain)), &policy);
        assert_eq!(drain.watch, Some(Watch { fail_action: FailAction::Drain }));
        policy.actions.allowed = vec![FailAction::Retain];
        let clamped = effective(&on(Some(FailAction::Drain)), &policy);
        assert_eq!((clamped.watch, clamped.notices.len()), (retain, 1));

        let off = Request { runtime: Ask::Off, ..Request::default() };
        assert_eq!(effective(&Request::default(), &policy).watch, None);
        policy.runtime.always = true;
        assert_eq!(effective(&Request::default(), &policy).watch, retain);
        assert_eq!(effective(&off, &policy).watch, None);
        policy.runtime.enabled = false;
        let silent = effective(&Request::default(), &policy);
        assert_eq!((silent.watch, silent.notices.len()), (None, 0));
        let told = effective(&on(None), &policy);
        assert_eq!((told.watch, told.notices.len()), (None, 1));
    }

    #[test]
    fn the_sites_checks_run_without_flags_and_take_lone_flags() {
        let request = Request {
            lone_fail_action: Some(FailAction::Requeue),
            lone_timeout_min: Some(2),
            ..Request::default()
        };
        let effective = effective(&request, &policy(&[GemmFlops]));
        assert_eq!(effective.checks, [GemmFlops]);
        assert_eq!(effective.source_of(GemmFlops), Some(Source::Site));
        assert_eq!(
            (effective.fail_action, effective.fail_action_source),
            (FailAction::Requeue, Source::User)
        );
        assert_eq!((effective.timeout_s, effective.timeout_source), (120, Source::User));
        assert!(effective.notices.is_empty());
    }

    #[test]
    fn defaults_are_the_sites() {
        let effective = effective(&asks(&[AllReduce2]), &policy(&[]));
        assert_eq!(effective.source_of(AllReduce2), Some(Source::User));
        assert_eq!(effective.source_of(GemmFlops), None);
        assert_eq!((effective.fail_action, effective.fail_action_source), (FailAction::Fail, Source::Site));
        assert_eq!((effective.timeout_s, effective.timeout_source), (300, Source::Site));
    }

    #[test]
    fn a_list_replaces_the_sites_where_users_may_weaken_and_joins_it_elsewhere() {
        let mut policy = policy(&[GemmFlops, AllReduce1]);
        let request = asks(&[AllReduce1, AllReduce2]);
        let free = effective(&request, &policy);
        assert_eq!(free.checks, [AllReduce1, AllReduce2]);
        assert_eq!(free.source_of(AllReduce1), Some(Source::Site));
        assert_eq!(free.source_of(AllReduce2), Some(Source::User));
        assert!(free.notices.is_empty());
        policy.checks.users_may_weaken = false;
        let clamped = effective(&request, &policy);
        assert_eq!(clamped.checks, [GemmFlops, AllReduce1, AllReduce2]);
        assert_eq!(clamped.notices, ["this site adds gemm_flops"]);
    }

    #[test]
    fn off_holds_only_where_it_is_allowed() {
        let mut policy = policy(&[GemmFlops]);
        let request = Request { sanity: Ask::Off, ..Request::default() };
        assert!(effective(&request, &policy).checks.is_empty());
        policy.checks.users_may_switch_off = false;
        let clamped = effective(&request, &policy);
        assert_eq!(clamped.checks, [GemmFlops]);
        assert_eq!(clamped.notices.len(), 1);
    }

    #[test]
    fn actions_and_times_beyond_the_policy_are_clamped_with_a_notice() {
        let mut policy = policy(&[]);
        policy.actions.allowed = vec![FailAction::Retain];
        policy.actions.fail_action = FailAction::Drain;
        let mut request = asks(&[GemmFlops]);
        let Ask::On(sanity) = &mut request.sanity else { panic!() };
        sanity.fail_action = Some(FailAction::Requeue);
        sanity.timeout_min = Some(u32::MAX);
        let effective = effective(&request, &policy);
        assert_eq!((effective.fail_action, effective.fail_action_source), (FailAction::Drain, Source::Site));
        assert_eq!((effective.timeout_s, effective.timeout_source), (300, Source::Site));
        assert_eq!(effective.notices.len(), 2, "{:?}", effective.notices);
    }

    #[test]
    fn a_cap_below_the_default_time_is_no_news() {
        let mut policy = policy(&[]);
        policy.time.max_deadline_s = 90;
        let effective = effective(&asks(&[GemmFlops]), &policy);
        assert_eq!(effective.timeout_s, 90);
        assert!(effective.notices.is_empty());
    }

    #[test]
    fn checks_that_this_build_lacks_stay_and_are_named() {
        let mut policy = policy(&[]);
        for engine in [Engine::Host, Engine::Cuda] {
            policy.engine = engine;
            let all: Vec<CheckName> = crate::check::ALL.iter().map(|spec| spec.name).collect();
            let effective = effective(&asks(&all), &policy);
            assert_eq!(effective.checks, all);
            let lacks = |name: &CheckName| !name.spec().engines.contains(&engine);
            assert_eq!(effective.unbuilt, all.into_iter().filter(lacks).collect::<Vec<_>>());
            let named = effective.notices.iter().any(|notice| notice.starts_with("not built yet"));
            assert_eq!(named, !effective.unbuilt.is_empty());
        }
    }
}
