//! `cargo xtask screenshots`: reports of simulated jobs as pages in a real browser, wide and narrow, light and dark. Each page
//! must be silent (no error, no request), keep to its width, be readable, and have a name for each picture and table; some of
//! them are kept as pictures in `docs/screenshots`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use serde_json::{Value, json};

use crate::chromium::Browser;
use crate::packages;
use crate::stage::cargo;

/// Jobs of `diag/examples/reports.rs`, and what each is.
const JOBS: &[(u32, &str)] = &[(101, "pass"), (102, "gpu"), (103, "pairs"), (104, "large"), (105, "runtime")];

/// Widths: a desk and a phone.
const SIZES: &[(&str, u32, u32)] = &[("desktop", 1280, 900), ("phone", 390, 844)];

const SCHEMES: &[&str] = &["light", "dark"];

/// What is kept: job, width, scheme, from which element on, and how many px of it.
const KEPT: &[(&str, &str, &str, &str, u32)] = &[
    ("pass", "desktop", "light", "#series", 1150),
    ("gpu", "desktop", "light", "body", 1400),
    ("gpu", "phone", "dark", "body", 1500),
    ("pairs", "desktop", "dark", "#pairs", 1300),
    ("large", "desktop", "light", "#series", 1000),
    ("large", "phone", "light", "#pairs", 1500),
    ("runtime", "desktop", "light", "#watch", 1350),
    ("runtime", "phone", "dark", "body", 1500),
];

/// Largest picture that is kept.
const MOST_BYTES: usize = 200_000;

/// Most elements of a page: what a phone scrolls without a stutter.
const MOST_ELEMENTS: u64 = 10_000;

/// Room above the first element of a picture, in px.
const MARGIN: f64 = 40.0;

/// Least contrast of text: WCAG 2.2, 1.4.3.
const CONTRAST: f64 = 4.5;

/// Text whose colour is too near to its ground, the width of the page, and how many elements it has.
const SCRIPT: &str = r"(() => {
  const parse = (text) => (text.match(/[\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || element.tagName === 'title' || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const svg = element.namespaceURI.endsWith('svg');
    const level = [...element.classList].find((name) => name.startsWith('on-l'));
    const swatch = level && document.querySelector('.' + level.slice(3));
    const below = swatch ? parse(getComputedStyle(swatch).backgroundColor) : ground(element);
    const [a, b] = [light(parse(svg ? style.fill : style.color)), light(below)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    poor.push([ratio, element.className.baseVal ?? element.className, element.textContent.slice(0, 40)]);
  }
  poor.sort((x, y) => x[0] - y[0]);
  return {
    width: document.documentElement.scrollWidth, height: document.documentElement.scrollHeight,
    elements: document.querySelectorAll('*').length, poorest: poor.slice(0, 3),
  };
})()";

/// Renders, looks, and keeps.
///
/// # Errors
/// A page is not as it must be, or nothing can be made.
pub fn screenshots() -> Result<()> {
    packages::install_these(packages::BROWSER)?;
    let folder = std::path::absolute("target/screenshots")?;
    let reports = folder.join("reports").display().to_string();
    cargo(&["run", "--quiet", "--package", "diag", "--example", "reports", "--", &reports])?;
    cargo(&["build", "--quiet", "--package", "cli"])?;
    let kept = Path::new("docs/screenshots");
    std::fs::create_dir_all(kept)?;
    let mut browser = Browser::start(&folder.join("profile"))?;
    let mut wrong = Vec::new();
    for (job, what) in JOBS {
        let page = page(*job, &reports, &folder.join(format!("{what}.html")))?;
        for ((size, width, height), scheme) in
            SIZES.iter().flat_map(|size| SCHEMES.iter().map(move |one| (size, one)))
        {
            let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": *size == "phone" });
            browser.call("Emulation.setDeviceMetricsOverride", &screen)?;
            let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
            browser.call("Emulation.setEmulatedMedia", &media)?;
            browser.open(&page)?;
            let name = format!("{what}-{size}-{scheme}");
            let seen = browser.asks(SCRIPT)?;
            println!("{name}: {} elements, {} px high", seen["elements"], seen["height"]);
            wrong.extend(
                mistakes(&mut browser, &seen, *width)?.into_iter().map(|line| format!("{name}: {line}")),
            );
            let keep = KEPT.iter().find(|one| (one.0, one.1, one.2) == (*what, *size, *scheme));
            if let Some((.., from, high)) = keep {
                let place =
                    browser.asks(&format!("document.querySelector('{from}').getBoundingClientRect().top"))?;
                let from = (place.as_f64().context("no such element")? - MARGIN).max(0.0);
                let high = f64::from(*high).min(seen["height"].as_f64().unwrap_or_default() - from);
                let clip = json!({ "x": 0, "y": from, "width": width, "height": high, "scale": 1 });
                wrong.extend(keep_picture(&mut browser, &clip, &kept.join(format!("{name}.png")))?);
            }
        }
    }
    for line in &wrong {
        eprintln!("{line}");
    }
    if wrong.is_empty() { Ok(()) } else { bail!("{} mistakes", wrong.len()) }
}

/// The page of a job, by the program itself.
fn page(job: u32, reports: &str, to: &Path) -> Result<PathBuf> {
    let program = Path::new("target/debug/aimaster");
    let job = job.to_string();
    let mut command = Command::new(program);
    command.args(["report", &job, "--html", "--report-dir", reports, "--output"]).arg(to);
    // Its exit code is the outcome of the job.
    let status = command.status().with_context(|| format!("can't run {}", program.display()))?;
    if status.code().is_none_or(|code| code == 2) {
        bail!("aimaster report {job} --html: {status}");
    }
    Ok(to.to_owned())
}

fn mistakes(browser: &mut Browser, seen: &Value, room: u32) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    if seen["width"].as_u64().is_none_or(|width| width > u64::from(room)) {
        wrong.push(format!("it is {} px wide and has room for {room}", seen["width"]));
    }
    if seen["elements"].as_u64().is_none_or(|count| count > MOST_ELEMENTS) {
        wrong.push(format!("{} elements", seen["elements"]));
    }
    for poor in seen["poorest"].as_array().into_iter().flatten() {
        if poor[0].as_f64().is_none_or(|ratio| ratio < CONTRAST) {
            wrong.push(format!("contrast: {poor}"));
        }
    }
    let tree = browser.call("Accessibility.getFullAXTree", &json!({}))?;
    let nodes = tree["nodes"].as_array().context("no tree of names")?;
    let mut named = 0;
    for node in nodes.iter().filter(|node| node["ignored"] != true) {
        let role = node["role"]["value"].as_str().unwrap_or_default();
        if !["image", "img", "table", "region", "heading"].contains(&role) {
            continue;
        }
        named += 1;
        if node["name"]["value"].as_str().is_none_or(|name| name.trim().is_empty()) {
            wrong.push(format!("a {role} without a name"));
        }
    }
    if named < 5 {
        wrong.push(format!("{named} parts with names: is this a page?"));
    }
    // The calls above have brought in whatever was still on its way.
    for one in &browser.told {
        let (method, parameters) = (one["method"].as_str().unwrap_or_default(), &one["params"]);
        let request = parameters["request"]["url"].as_str().is_some_and(|url| !url.starts_with("file://"));
        match method {
            "Log.entryAdded" | "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" => {
                wrong.push(format!("it speaks: {parameters}"));
            }
            "Network.requestWillBeSent" if request => {
                wrong.push(format!("it asks for {}", parameters["request"]["url"]))
            }
            _ => {}
        }
    }
    Ok(wrong)
}

fn keep_picture(browser: &mut Browser, clip: &Value, to: &Path) -> Result<Option<String>> {
    let parameters = json!({ "format": "png", "clip": clip, "captureBeyondViewport": true });
    let answer = browser.call("Page.captureScreenshot", &parameters)?;
    let data = answer["data"].as_str().context("no picture")?;
    let bytes = base64::engine::general_purpose::STANDARD.decode(data)?;
    std::fs::write(to, &bytes).with_context(|| format!("can't write {}", to.display()))?;
    println!("{}: {} bytes", to.display(), bytes.len());
    Ok((bytes.len() > MOST_BYTES).then(|| format!("{} has {} bytes", to.display(), bytes.len())))
}
