//! `docs/security.md` names files and tests: each is there. A file stands in backquotes by its path from the root, a test
//! after it as `path.rs`: `name`.

use std::path::Path;

const PAGE: &str = include_str!("../../../docs/security.md");

/// Texts in backquotes, each with what stands between it and the one before.
fn quoted(page: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = page.split('`').collect();
    parts.chunks_exact(2).map(|two| (two[0], two[1])).collect()
}

/// Files, and tests in them, that are not there.
fn missing(page: &str, root: &Path) -> (usize, Vec<String>) {
    let (mut tests, mut missing, mut file) = (0, Vec::new(), None);
    for (between, text) in quoted(page) {
        let path = root.join(text);
        if text.contains('/') && text.ends_with(".rs") {
            file = std::fs::read_to_string(&path).ok().map(|content| (text, content));
            if file.is_none() {
                missing.push(text.to_owned());
            }
            continue;
        }
        // After a file, and after another test of it.
        let follows = between.trim_end() == ":" || between.trim() == ",";
        match &file {
            Some((name, content)) if follows => {
                tests += 1;
                if !content.contains(&format!("fn {text}(")) {
                    missing.push(format!("{name}: {text}"));
                }
            }
            _ => file = None,
        }
    }
    (tests, missing)
}

#[test]
fn all_that_the_page_on_security_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (tests, gone) = missing(PAGE, &root);
    assert!(gone.is_empty(), "docs/security.md names what is not there: {gone:#?}");
    assert!(tests > 40, "{tests} tests were found on the page: is it written as it is read?");
    let page = "`diag/src/plain.rs`: `no_such_test` and `diag/src/none.rs`: `x`";
    assert_eq!(missing(page, &root).1, ["diag/src/plain.rs: no_such_test", "diag/src/none.rs"]);
}
