//! The pages as a book: all links between them lead somewhere, and every page stands in `docs/SUMMARY.md`. mdBook itself is not
//! asked. What a page says is held elsewhere.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

/// The list of chapters.
const SUMMARY: &str = "docs/SUMMARY.md";

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Pages of the documentation, by their paths from the root.
pub fn pages() -> Vec<String> {
    let mut pages = Vec::new();
    for folder in ["", "docs/"] {
        for entry in std::fs::read_dir(root().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") {
                pages.push(format!("{folder}{name}"));
            }
        }
    }
    pages.sort();
    pages
}

/// A page's lines outside of blocks of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    })
}

/// Targets of links and pictures; what stands in backquotes is none.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        let plain: String = line.split('`').step_by(2).collect::<Vec<_>>().join("\u{1}");
        for (at, _) in plain.match_indices("](") {
            let rest = &plain[at + 2..];
            found.extend(rest.split_once(')').map(|(target, _)| target.to_owned()));
        }
    }
    found
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let heading = |line: &str| {
        let title = line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'))?;
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        Some(kept.collect::<String>().trim().to_lowercase().replace(' ', "-"))
    };
    prose(text).filter_map(heading).collect()
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> String {
    let mut parts: Vec<String> = Vec::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = parts.pop(),
            Component::Normal(name) => parts.push(name.to_string_lossy().into_owned()),
            _ => {}
        }
    }
    parts.join("/")
}

/// What is wrong with the links of a page.
fn broken(page: &str, text: &str) -> Vec<String> {
    let mut broken = Vec::new();
    for link in links(text) {
        if link.contains("://") {
            continue;
        }
        let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
        let to = match file {
            "" => page.to_owned(),
            file => plain(&Path::new(page).parent().unwrap().join(file)),
        };
        // The book has the pages of docs/ only, and a package has other folders beside them.
        if page.starts_with("docs/") && !to.starts_with("docs/") {
            broken.push(format!("{page}: {link}: it leads out of the book: name {to} without a link"));
        }
        let missing = !root().join(&to).exists();
        if missing {
            broken.push(format!("{page}: {link}: there is no {to}"));
        }
        let Ok(there) = std::fs::read_to_string(root().join(&to)) else { continue };
        if !anchor.is_empty() && !anchors(&there).contains(anchor) {
            broken.push(format!("{page}: {link}: {to} has no such heading"));
        }
    }
    broken
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    let read = |page: &String| std::fs::read_to_string(root().join(page)).unwrap();
    let broken: Vec<String> = pages().iter().flat_map(|page| broken(page, &read(page))).collect();
    assert!(broken.is_empty(), "{broken:#?}");
    // The test itself: each kind of a broken link is seen, a right one is not.
    let page = "[a](none.md) [b](checks.md#no-such) [c](checks.md#gemm_flops) [d](#x) `[e](no)` ![f](no.svg) [g](../README.md)\n# X\n";
    let told = super::book::broken("docs/x.md", page);
    let mine: Vec<&str> = told.iter().map(|one| one.split(": ").nth(1).unwrap()).collect();
    assert_eq!(mine, ["none.md", "checks.md#no-such", "#x", "no.svg", "../README.md"]);
}

#[test]
fn every_page_is_a_chapter_once() {
    let text = std::fs::read_to_string(root().join(SUMMARY)).unwrap();
    let mut chapters: Vec<String> =
        links(&text).iter().map(|link| plain(&Path::new("docs").join(link))).collect();
    chapters.retain(|page| page.starts_with("docs/"));
    chapters.sort();
    let pages: Vec<String> =
        pages().into_iter().filter(|page| page.starts_with("docs/") && page != SUMMARY).collect();
    assert_eq!(chapters, pages, "{SUMMARY} has every page of docs/, once");
    let book = std::fs::read_to_string(root().join("book.toml")).unwrap();
    let book: toml::Table = book.parse().unwrap();
    assert_eq!(book["book"]["src"].as_str(), Some("docs"));
}
