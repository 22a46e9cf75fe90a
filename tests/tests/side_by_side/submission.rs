//! What srun, sbatch and salloc make of right and wrong requests, on a real Slurm.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a step that fails is the test's failure")]

use aimaster_tests::{Cluster, JobId, Output, plugin, side_by_side};
use diag::check::{CheckName, DEFAULT_CHECKS};
use diag::request::{Ask, FailAction, Request};

/// Where the stand-in writes its environment, with the job's id at the end.
const SEEN: &str = "/tmp/seen.";

/// The request that the prolog of a job saw, if it saw one.
fn request_seen(cluster: &Cluster, job: u64) -> Option<Request> {
    let nodes = cluster.nodes();
    let environment =
        nodes.iter().find_map(|node| cluster.read_file(node, &format!("{}{job}", SEEN)).ok()).unwrap();
    let text = environment.lines().find_map(|line| line.strip_prefix("SPANK_AIMASTER_REQUEST="))?;
    Some(Request::decode(text).unwrap())
}

/// The id that `echo $SLURM_JOB_ID` printed.
fn id_of(output: &Output) -> u64 {
    output.stdout.lines().last().unwrap().trim().parse().unwrap()
}

fn checks_of(request: &Request) -> Vec<CheckName> {
    match &request.sanity {
        Ask::On(sanity) => sanity.checks.clone(),
        other => panic!("{other:?}"),
    }
}

/// Runs a command that must be refused, and wants each of `parts` in one line of its own.
fn refused(output: Output, parts: &[&str]) {
    let what = format!("{}: {}", output.what, output.stderr);
    assert_eq!(output.code(), 1, "{what}");
    assert!(output.stdout.is_empty(), "{what}");
    for part in parts {
        assert!(
            output.stderr.lines().any(|line| line.contains("aimaster: ") && line.contains(part)),
            "no {part:?} in {what}"
        );
    }
    assert_eq!(
        output.stderr.lines().filter(|line| line.contains("aimaster: ")).count(),
        parts.len(),
        "{what}"
    );
}

const DOCUMENTS: &str = r#"
mkdir -p /tmp/docs && cd /tmp/docs && chmod 755 .
printf '{"aimaster": \377}' >not-utf-8
head -c 10000000 /dev/zero | tr '\0' ' ' >large
echo '{"aimaster": {' >broken
echo '{"aimaster": {"sanity_chek": {}, "sanity_check": {"micro_benchmarks": 5, "timeout": 1.5}}}' >wrong
echo '{"aimaster": {"sanity_check": {"micro_benchmarks": ""}}}' >empty
echo '{"aimaster": {}}' >unreadable && chmod 600 unreadable
mkfifo fifo && chmod 644 fifo
"#;

// Told where it was typed, and never on a node.
fn wrong_input_never_queues(how: &str) {
    let _machine = side_by_side().unwrap();
    let cluster = plugin::cluster(how, 1).unwrap();
    cluster.exec("ctl", ["sh", "-c", DOCUMENTS]).unwrap().ok().unwrap();
    let cases: &[(&str, &[&str])] = &[
        ("--sanity-check=gemm_flop", &["\"gemm_flop\"; did you mean gemm_flops?"]),
        ("--sanity-check=x\u{1b}[2J", &["x\\u{1b}[2j"]),
        ("--sanity-check=", &["--sanity-check: the list of checks is empty"]),
        ("--sanity-timeout=0", &["--sanity-timeout: \"0\""]),
        ("--sanity-timeout=-3", &["--sanity-timeout: \"-3\""]),
        ("--sanity-timeout=1.5", &["--sanity-timeout: \"1.5\""]),
        ("--sanity-timeout=99999999999999999999", &["--sanity-timeout"]),
        ("--sanity-fail-action=explode", &["--sanity-fail-action: \"explode\""]),
        ("--runtime-check=c5d", &["did you mean c4d?"]),
        ("--aimaster=/tmp/docs/none", &["no such file"]),
        ("--aimaster=/tmp/docs/unreadable", &["Permission denied"]),
        ("--aimaster=/tmp/docs/large", &["1 MiB"]),
        ("--aimaster=/tmp/docs/not-utf-8", &["not UTF-8"]),
        ("--aimaster=/tmp/docs/broken", &["not JSON"]),
        (
            "--aimaster=/tmp/docs/empty",
            &["aimaster.sanity_check.micro_benchmarks: the list of checks is empty"],
        ),
        ("--aimaster=/tmp/docs/fifo", &["FIFO, not a regular file"]),
        ("--aimaster=/tmp/docs", &["folder, not a regular file"]),
        ("--aimaster=/dev/zero", &["not a regular file"]),
        (
            "--aimaster=/tmp/docs/wrong",
            &["did you mean sanity_check?", "sanity_check.micro_benchmarks: 5", "sanity_check.timeout: 1.5"],
        ),
    ];
    for (flag, parts) in cases {
        refused(cluster.srun([*flag, "true"]).run().unwrap(), parts);
    }
    let both = ["--sanity-check=nope", "--sanity-timeout=0"];
    let parts = ["\"nope\"", "\"0\""];
    refused(cluster.sbatch(both).args(["--wrap", "true"]).run().unwrap(), &parts);
    refused(cluster.salloc(both).args(["true"]).run().unwrap(), &parts);
    let script = "#!/bin/sh\n#SBATCH --sanity-check=nope\n#SBATCH --sanity-timeout=0\ntrue\n";
    refused(cluster.sbatch::<&str>([]).stdin(script).run().unwrap(), &parts);
    for command in [cluster.srun(["true"]), cluster.salloc(["true"]), cluster.sbatch(["--wrap", "true"])] {
        let command = command.env("AIMASTER_SANITY_CHECK", "nope").env("AIMASTER_SANITY_TIMEOUT", "x");
        let command = command.env("AIMASTER_CONFIG", "/tmp/docs/none");
        refused(
            command.run().unwrap(),
            &["AIMASTER_SANITY_CHECK", "AIMASTER_SANITY_TIMEOUT", "AIMASTER_CONFIG"],
        );
    }
    // Nothing is queued, and nothing ever was.
    let jobs = cluster.scontrol(["show", "jobs"]).ok().unwrap();
    assert_eq!(jobs.text(), "No jobs in the system");
}

// B09.
#[test]
fn wrong_input_never_queues_with_an_optional_plugin() {
    wrong_input_never_queues("optional");
}

// B09.
#[test]
fn wrong_input_never_queues_with_a_required_plugin() {
    wrong_input_never_queues("required");
}

// A11.
#[test]
fn the_request_arrives_however_the_environment_is_exported() {
    let _machine = side_by_side().unwrap();
    let cluster = plugin::cluster("optional", 1).unwrap();
    let script = "#!/bin/bash\n#SBATCH --sanity-check=all_reduce_1,GEMM_FLOPS\necho $SLURM_JOB_ID\n";
    let checks = [CheckName::GemmFlops, CheckName::AllReduce1];
    for export in ["--export=NONE", "--export=NIL", "--export=A=1", "--export=ALL,A=1"] {
        let command =
            [export, "--sanity-check=all_reduce_1,gemm_flops", "/bin/sh", "-c", "echo $SLURM_JOB_ID"];
        let output = cluster.srun(command).ok().unwrap();
        assert_eq!(checks_of(&request_seen(&cluster, id_of(&output)).unwrap()), checks, "{export}");
        let JobId(job) = cluster.submit(script, [export]).unwrap();
        cluster.wait_end(JobId(job), std::time::Duration::from_secs(30)).unwrap();
        assert_eq!(checks_of(&request_seen(&cluster, job.into()).unwrap()), checks, "{export}");
    }
    // The bare flag, and the environment's twins.
    let show = ["sh", "-c", "echo $SLURM_JOB_ID"];
    for command in [cluster.srun(["--sanity-check"]), cluster.salloc(["--sanity-check"])] {
        let request = request_seen(&cluster, id_of(&command.args(show).ok().unwrap())).unwrap();
        assert_eq!(checks_of(&request), DEFAULT_CHECKS);
    }
    let twins = cluster.srun(show).env("AIMASTER_SANITY_CHECK", "default");
    let request =
        request_seen(&cluster, id_of(&twins.env("AIMASTER_SANITY_FAIL_ACTION", "drain").ok().unwrap()));
    let Some(Request { sanity: Ask::On(sanity), .. }) = request else { panic!("{request:?}") };
    assert_eq!((sanity.checks.as_slice(), sanity.fail_action), (DEFAULT_CHECKS, Some(FailAction::Drain)));
}

// B13, B14: user, group and job as Slurm's header orders them; a user whose two numbers are the same shows nothing.
#[test]
fn the_helper_knows_the_job_by_slurm_s_own_word() {
    let _machine = side_by_side().unwrap();
    let cluster = plugin::cluster("optional", 1).unwrap();
    let as_user = "cd /tmp; exec setpriv --reuid=alice --regid=bob --clear-groups \
                   srun --sanity-check=gemm_flops sh -c 'id -u; id -g; echo $SLURM_JOB_ID'";
    let output = cluster.exec("ctl", ["sh", "-c", as_user]).unwrap().ok().unwrap();
    let lines: Vec<&str> = output.stdout.lines().collect();
    let [user, group, job] = lines[..] else { panic!("{output:?}") };
    assert_ne!(user, group);
    let seen = cluster.read_file("n1", &format!("{SEEN}{job}")).unwrap();
    for (name, value) in [("SLURM_JOB_UID", user), ("SLURM_JOB_GID", group), ("SLURM_JOB_ID", job)] {
        assert!(seen.lines().any(|line| line == format!("{name}={value}")), "{name}={value}: {seen}");
    }
}

#[test]
fn who_asks_for_nothing_sends_nothing() {
    let _machine = side_by_side().unwrap();
    let cluster = plugin::cluster("optional", 1).unwrap();
    let show = ["sh", "-c", "echo $SLURM_JOB_ID; env | grep AIMASTER_REQUEST; echo $SLURM_JOB_ID"];
    for command in [cluster.srun(show), cluster.salloc(show)] {
        // Made up, or left over from an outer job.
        let command = command.env("SPANK_AIMASTER_REQUEST", "x").env("SLURM_SPANK_AIMASTER_REQUEST", "x");
        let output = command.env("_SLURM_SPANK_OPTION_aimaster_sanity_check", "bogus").ok().unwrap();
        assert_eq!(request_seen(&cluster, id_of(&output)), None);
        assert!(!output.stdout.contains("AIMASTER_REQUEST"), "{}", output.stdout);
        assert!(!output.stderr.contains("aimaster"), "{}", output.stderr);
    }
}

#[test]
fn a_broken_policy_at_submission_is_the_node_s_business() {
    let _machine = side_by_side().unwrap();
    let cluster = plugin::cluster("optional", 1).unwrap();
    let _own = cluster.set_node_policy("ctl", "no_such_key = 1\n").unwrap();
    let output = cluster.srun(["--sanity-check=gemm_flops", "sh", "-c", "echo $SLURM_JOB_ID"]).ok().unwrap();
    assert!(output.stderr.contains("warning: policy /etc/aimaster/aimaster.toml"), "{}", output.stderr);
    assert!(request_seen(&cluster, id_of(&output)).is_some());
}

const NOTICE: &str = "the checks belong to the job";

#[test]
fn a_step_changes_nothing_and_is_told_so_only_if_it_carries_flags() {
    let _machine = side_by_side().unwrap();
    let cluster = plugin::cluster("optional", 1).unwrap();
    let steps = "srun --sanity-check=gemm_flops echo flag; srun --sanity-check=bogus echo wrong flag";
    let output = cluster.salloc(["--sanity-check=gemm_flops", "sh", "-c", steps]).ok().unwrap();
    assert_eq!(output.stdout, "flag\nwrong flag\n");
    assert_eq!(output.stderr.matches(NOTICE).count(), 2, "{}", output.stderr);

    // Inherited options are not the step's own, and a twin stays silent whatever it holds.
    let quiet = "srun echo plain; AIMASTER_SANITY_CHECK=bogus srun echo twin";
    let output = cluster.salloc(["--sanity-check=gemm_flops", "sh", "-c", quiet]).ok().unwrap();
    assert_eq!(output.stdout, "plain\ntwin\n");
    assert!(!output.stderr.contains("aimaster: "), "{}", output.stderr);

    // From outside, by --jobid; what the program is given does not count.
    let outside = "unset SLURM_JOB_ID SLURM_JOBID; srun --jobid=$1 --sanity-check=gemm_flops echo --jobid=$1";
    let inside = format!("sh -c '{outside}' sh $SLURM_JOB_ID");
    let output = cluster.salloc(["sh", "-c", &inside]).ok().unwrap();
    assert_eq!(output.stderr.matches(NOTICE).count(), 1, "{}", output.stderr);
    let output = cluster.srun(["--sanity-check=gemm_flops", "echo", "--jobid=1"]).ok().unwrap();
    assert!(!output.stderr.contains(NOTICE), "{}", output.stderr);
}

#[test]
fn a_nested_submission_is_a_job_of_its_own() {
    let _machine = side_by_side().unwrap();
    let cluster = plugin::cluster("optional", 2).unwrap();
    let script = "#!/bin/bash
        #SBATCH --sanity-check=gemm_flops
        sbatch --parsable --wait -o /dev/null --wrap true
        sbatch --parsable --wait -o /dev/null --sanity-check=all_reduce_1 --wrap true
        AIMASTER_SANITY_CHECK=off sbatch --parsable --wait -o /dev/null --wrap true
        sbatch --sanity-check=bogus --wrap true || echo refused
    "
    .replace("\n        ", "\n");
    let job = cluster.submit(&script, ["-N1"]).unwrap();
    cluster.wait_end(job, std::time::Duration::from_secs(60)).unwrap();
    let output = cluster.job_output(job).unwrap();
    let ids: Vec<u64> = output.lines().filter_map(|line| line.parse().ok()).collect();
    assert_eq!(ids.len(), 3, "{output}");
    assert_eq!(request_seen(&cluster, ids[0]), None, "the outer job's flags leaked");
    assert_eq!(checks_of(&request_seen(&cluster, ids[1]).unwrap()), [CheckName::AllReduce1]);
    assert_eq!(request_seen(&cluster, ids[2]).unwrap().sanity, Ask::Off);
    assert!(output.contains("\"bogus\"") && output.contains("refused"), "{output}");
}
