//! Which cases of `tests/field-cases.toml` the tests name. A case is named in a comment above a test or in its body, by a
//! text of its body that begins with it, or by the `about` of a scenario. Lines are read as rustfmt leaves them: a function ends
//! with a brace as far in as it began. No parser of Rust.

use std::path::{Path, PathBuf};

/// What looks like the name of a case and is a GPU's; A10 and A30 are cases, so those two GPUs are not to be named in comments.
const OTHER_NAMES: &[&str] = &["A16", "A40", "H20", "L20", "L40"];

/// Where nothing is read: what was built, and this program, whose own test has cases that are none.
const PASSED_BY: &[&str] = &["target", "tests/tests/docs"];

/// A case that is named somewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    pub id: String,
    /// The file, below the root.
    pub path: String,
    pub line: usize,
    pub by: By,
}

/// Who names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum By {
    /// A test or a benchmark.
    Test(String),
    /// A scenario, which a test reads.
    Scenario(String),
    /// A file of tests as a whole, at its head.
    File,
    /// The product: it says why something is as it is, and shows nothing.
    Product,
    /// A line in a file of tests that belongs to no test.
    Nobody,
}

/// All cases that are named below `root`.
pub fn all(root: &Path) -> Vec<Named> {
    let mut named = Vec::new();
    for path in files(root) {
        let text = std::fs::read_to_string(root.join(&path)).unwrap();
        let path = path.to_string_lossy().into_owned();
        named.extend(if path.ends_with(".rs") { rust(&path, &text) } else { scenario(&path, &text) });
    }
    named
}

/// Whether the test needs a GPU: it lies in a folder of such tests, or its file asks whether it may use one.
pub fn needs_gpu(path: &str, text: &str) -> bool {
    path.starts_with("tests/tests/gpu/") || text.contains("AIMASTER_GPU_TESTS")
}

/// Files of Rust and scenarios, in order of their paths.
fn files(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let below = path.strip_prefix(root).unwrap().to_owned();
            let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            if hidden || PASSED_BY.iter().any(|one| below == Path::new(one)) {
                continue;
            }
            let ends = |end: &str| path.extension().is_some_and(|it| it == end);
            if path.is_dir() {
                folders.push(path);
            } else if ends("rs") || (ends("toml") && folder.ends_with("scenarios")) {
                files.push(below);
            }
        }
    }
    files.sort();
    files
}

/// Where `about` of a scenario begins with cases.
fn scenario(path: &str, text: &str) -> Vec<Named> {
    let stem = Path::new(path).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let about = (1..).zip(text.lines()).filter(|(_, line)| line.starts_with("about = "));
    let named = about.flat_map(|(line, text)| labels(text).into_iter().map(move |id| (line, id)));
    named
        .map(|(line, id)| Named { id, path: path.to_owned(), line, by: By::Scenario(stem.clone()) })
        .collect()
}

/// The cases that a file of Rust names.
pub fn rust(path: &str, text: &str) -> Vec<Named> {
    let lines: Vec<&str> = text.lines().collect();
    let tests_from = tests_from(path, &lines);
    let bench = path.contains("/benches/");
    let mut named = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let in_test = at >= tests_from;
        let comment = comment(line);
        let mut ids = words(comment);
        if in_test {
            ids.extend(labels(&line[..line.len() - comment.len()]));
        }
        if ids.is_empty() {
            continue;
        }
        let by = if !in_test {
            By::Product
        } else if comment.starts_with("//!") {
            By::File
        } else {
            holder(&lines, at)
                .filter(|&it| bench || is_test(&lines, it))
                .and_then(|it| function(lines[it]))
                .map_or(By::Nobody, |name| By::Test(name.to_owned()))
        };
        named.extend(ids.into_iter().map(|id| Named {
            id,
            path: path.to_owned(),
            line: at + 1,
            by: by.clone(),
        }));
    }
    named
}

/// The first line of tests in a file.
fn tests_from(path: &str, lines: &[&str]) -> usize {
    let file = path.rsplit('/').next().unwrap_or_default();
    if path.contains("/tests/") || path.contains("/benches/") || file == "tests.rs" {
        return 0;
    }
    let begins = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].ends_with('{');
    lines.windows(2).position(begins).unwrap_or(lines.len())
}

/// A line's comment, with its slashes; those of an address are none.
fn comment(line: &str) -> &str {
    let mut begins = line.match_indices("//").map(|(at, _)| at);
    begins.find(|&at| !line[..at].ends_with(':')).map_or("", |at| &line[at..])
}

/// The function to which a line belongs: what stands above one, and only comments and attributes between, is its own.
fn holder(lines: &[&str], at: usize) -> Option<usize> {
    if lines[at].trim_start().starts_with("//") {
        let passed =
            |line: &&&str| line.trim_start().starts_with("//") || line.trim_start().starts_with("#[");
        let next = at + lines[at..].iter().take_while(passed).count();
        if lines.get(next).is_some_and(|line| function(line).is_some()) {
            return Some(next);
        }
    }
    (0..at).rev().find(|&from| {
        let inside = indent(lines[from]) < indent(lines[at]) && !lines[from].ends_with('}');
        let over = |line: &&str| indent(line) == indent(lines[from]) && line.trim_start() == "}";
        function(lines[from]).is_some() && inside && !lines[from + 1..at].iter().any(over)
    })
}

/// Whether the function that begins there has an attribute of a test above it.
fn is_test(lines: &[&str], function: usize) -> bool {
    let above = lines[..function].iter().rev().map(|line| line.trim_start());
    let mut attributes = above.take_while(|line| line.starts_with("#[") || line.starts_with("//"));
    attributes.any(|line| line == "#[test]" || (line.starts_with("#[") && line.contains("::test")))
}

/// The name of the function that begins in this line.
fn function(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    for word in ["pub ", "pub(crate) ", "pub(super) ", "async ", "unsafe ", "extern \"C\" "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let name = rest.strip_prefix("fn ")?;
    Some(name.split(|c: char| !is_word(c)).next().unwrap_or_default())
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// A letter from A to P and two digits.
fn is_id(word: &str) -> bool {
    let form = matches!(word.as_bytes(), [b'A'..=b'P', b'0'..=b'9', b'0'..=b'9']);
    form && !OTHER_NAMES.contains(&word)
}

/// Cases anywhere in a comment; `-N16` is an argument.
fn words(comment: &str) -> Vec<String> {
    let argument = |word: &str| comment.contains(&format!("-{word}"));
    let words = comment.split(|c: char| !is_word(c));
    words.filter(|word| is_id(word) && !argument(word)).map(str::to_owned).collect()
}

/// Cases with which a text in quotation marks begins: `"E18, L10"`, `"H03 idle"`, `"E17: a few"`.
fn labels(line: &str) -> Vec<String> {
    let mut ids = Vec::new();
    for text in line.split('"').skip(1).step_by(2) {
        let mut rest = text;
        while let Some(id) = rest.get(..3).filter(|id| is_id(id)) {
            if rest[3..].starts_with(|c: char| is_word(c) || c == '-') {
                break;
            }
            ids.push(id.to_owned());
            rest = rest[3..].strip_prefix(", ").unwrap_or_default();
        }
    }
    ids
}

#[test]
fn a_case_belongs_to_the_test_above_which_or_in_which_it_stands() {
    let text = "\
//! A01: of the whole.
// A02, A03.
/// Words.
#[test]
fn first() {
    fn one() -> u32 { 1 }
    fn two() {
        three();
    }
    // B01.
    check(\"C01, C02: words\", \"-N16\", \"H200\", \"http://D01\");
    four(); // an H20, an A100, a B200, -N04 and L40S beside E01
}
const LOOSE: u32 = 1; // F01
proptest! {
    // G01.
    #[test]
    fn second(it in 0..4) {
        \"H01\";
    }
}
// I01.
fn helper() {}
";
    let named: Vec<(String, By)> =
        rust("x/tests/y.rs", text).into_iter().map(|one| (one.id, one.by)).collect();
    let test = |name: &str| By::Test(name.to_owned());
    let of = |id: &str, by: By| (id.to_owned(), by);
    let expected = [
        of("A01", By::File),
        of("A02", test("first")),
        of("A03", test("first")),
        of("B01", test("first")),
        of("C01", test("first")),
        of("C02", test("first")),
        of("E01", test("first")),
        of("F01", By::Nobody),
        of("G01", test("second")),
        of("H01", test("second")),
        of("I01", By::Nobody),
    ];
    assert_eq!(named, expected);
}

#[test]
fn in_the_product_only_its_tests_show_anything() {
    let text = "// A01.\nconst NAME: &str = \"B01\";\n#[cfg(test)]\nmod tests {\n    // C01.\n    #[tokio::test]\n    async fn it() {}\n}\n";
    let named: Vec<(String, By)> = rust("x/src/y.rs", text).into_iter().map(|one| (one.id, one.by)).collect();
    assert_eq!(named, [("A01".to_owned(), By::Product), ("C01".to_owned(), By::Test("it".to_owned()))]);
    let bench = rust("x/benches/y.rs", "// D01.\nfn measure() {}\n");
    assert_eq!(bench[0].by, By::Test("measure".to_owned()));
    assert!(needs_gpu("tests/tests/gpu/site.rs", text) && needs_gpu("x.rs", "AIMASTER_GPU_TESTS"));
    assert!(!needs_gpu("x/tests/nvml.rs", text) && !needs_gpu("diag/src/health/gpu/tests.rs", text));
}
