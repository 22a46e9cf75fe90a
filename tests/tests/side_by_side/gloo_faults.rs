//! What users of PyTorch's Gloo would meet: a host name that leads to loopback, and a torch that is absent, broken,
//! hanging or wrong on one node. The report says which engine ran; only a wrong sum is a fault of a node.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::process::Command;

use aimaster_tests::{Cluster, Told, product, side_by_side};

const CHECK: [&str; 3] = ["-N4", "--sanity-fail-action=retain", "--sanity-check=pytorch_gloo_2"];

/// A torch that does not start is given up soon.
const POLICY: &str = "time = { torch_start_s = 25, max_deadline_s = 100 }";

/// Where the nodes find their python, the real one at first.
const PYTHON_DIR: &str = "/opt/aimaster/python";

struct Site {
    cluster: Cluster,
}

const REAL: &str = "exec /usr/bin/python3 \"$@\"";

impl Site {
    fn boot() -> Self {
        let cluster = product::boot(Cluster::builder().nodes(4).set("PrologEpilogTimeout", 180), "").unwrap();
        let folder = cluster.base().join("opt/python");
        std::fs::create_dir_all(&folder).unwrap();
        Self::put(&folder, REAL);
        let policy = format!("{POLICY}\npaths.python = '{PYTHON_DIR}/python3'");
        product::set_policy(&cluster, &policy).unwrap();
        Self { cluster }
    }

    /// Written by a process of its own: the tests beside this one would pass the open file on to their children, and
    /// what is open for writing can't be run.
    fn put(folder: &std::path::Path, script: &str) {
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\" && chmod 755 \"$0\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", write]).arg(folder.join("python3")).arg(script);
        assert!(shell.status().unwrap().success());
    }

    /// What is told of a job in which n2 has another python.
    fn told(&self, script: Option<&str>) -> Told {
        let own = self.cluster.own_folder("n2", PYTHON_DIR).unwrap();
        let path = self.cluster.own_path("n2", PYTHON_DIR).unwrap();
        match script {
            Some(script) => Self::put(&path, script),
            None => std::fs::remove_file(path.join("python3")).unwrap(),
        }
        let told = self.cluster.told(CHECK).unwrap();
        println!("{script:?}\n{told}");
        own.undo().unwrap();
        assert!(told.drained.is_empty() && told.started(), "{told}");
        told
    }
}

/// Messages of the items of one subject.
fn messages<'a>(told: &'a Told, subject: &str) -> Vec<&'a str> {
    let items = told.report["items"].as_array().unwrap().iter();
    items
        .filter(|item| item["subject"]["name"] == subject)
        .map(|item| item["message"].as_str().unwrap())
        .collect()
}

// F02, G02.
#[test]
fn a_torch_that_is_absent_broken_hanging_or_wrong_is_said() {
    let _machine = side_by_side().unwrap();
    let site = Site::boot();

    let told = site.told(None);
    assert_eq!(told.outcome(), "PASS", "{told}");
    let ring = messages(&told, "n1-n2");
    assert!(ring.iter().any(|line| line.contains("engine: ring (no torch); n2: ")), "{ring:?}");
    let torch = messages(&told, "n3-n4");
    assert!(torch.iter().any(|line| line.contains("engine: torch ")), "{torch:?}");

    for (script, words) in [
        ("echo 'ImportError: libtorch_cpu.so: invalid ELF header' >&2; exit 1", "invalid ELF header"),
        ("exec sleep 300", "did not start within"),
        ("echo 'hello, I am no JSON'; exec sleep 300", "hello"),
    ] {
        let told = site.told(Some(script));
        assert_eq!(told.outcome(), "ERROR", "{told}");
        assert!(told.items("FAIL").is_empty() && told.items("SUSPECT").is_empty(), "{told}");
        let named: Vec<&str> = told.items("ERROR").into_iter().map(|item| item[2]).collect();
        assert_eq!(named, ["n2"], "{told}");
        assert!(told.message("ERROR").contains(words), "{words}: {told}");
    }

    let lies = "/usr/bin/python3 \"$@\" | sed -u 's/\"right\": 1.0/\"right\": 0.5/'";
    let told = site.told(Some(lies));
    assert_eq!(told.outcome(), "FAIL", "{told}");
    assert_eq!(told.items("FAIL"), [["pytorch_gloo_2", "node", "n2"]], "{told}");
}

// N06.
#[test]
fn a_host_name_that_leads_to_loopback_is_a_fault_of_the_configuration() {
    let _machine = side_by_side().unwrap();
    let site = Site::boot();
    let own = site.cluster.own_folder("n3", "/etc").unwrap();
    let hosts = site.cluster.own_path("n3", "/etc").unwrap().join("hosts");
    let text = std::fs::read_to_string(&hosts).unwrap();
    // As Debian's installer leaves it.
    let own_line = format!("{} n3\n", site.cluster.address("n3").unwrap());
    assert!(text.contains(&own_line), "{text}");
    std::fs::write(&hosts, text.replace(&own_line, "127.0.1.1 n3\n")).unwrap();
    let told = site.cluster.told(CHECK).unwrap();
    println!("{told}");
    own.undo().unwrap();
    assert_eq!(told.outcome(), "FAIL", "{told}");
    assert!(told.drained.is_empty(), "{told}");
    let failed = told.items("FAIL");
    assert!(!failed.is_empty() && failed.iter().all(|item| item[1] == "path"), "{told}");
    assert!(failed.iter().all(|item| item[2].split("->").any(|end| end == "n3")), "{told}");
    assert!(told.message("FAIL").contains("resolves to a loopback address"), "{told}");
}
