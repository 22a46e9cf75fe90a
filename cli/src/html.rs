//! A page about a job as HTML: one file that needs nothing else. What it shows is [`diag::page`]'s matter; here are places and
//! lengths of the pictures, and templates that escape every text. No script, and a policy in the page that forbids all but its
//! own style.

mod pictures;

use anyhow::{Context as _, Result};
use diag::page::Page;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value, context};

use pictures::{columns, histogram, matrix, nodes};

/// The templates, by the names that they call each other. Of names that end so all texts are escaped.
const TEMPLATES: &[(&str, &str)] = &[
    ("page.html", include_str!("../templates/page.html")),
    ("lists.html", include_str!("../templates/lists.html")),
    ("verdict.html", include_str!("../templates/verdict.html")),
    ("phases.html", include_str!("../templates/phases.html")),
    ("series.html", include_str!("../templates/series.html")),
    ("pairs.html", include_str!("../templates/pairs.html")),
    ("watch.html", include_str!("../templates/watch.html")),
    ("table.html", include_str!("../templates/table.html")),
];

/// The style, which stands in the page as it is.
const STYLE: &str = include_str!("../templates/style.css");

/// The page as a file.
///
/// # Errors
/// A template asks for what is not there.
pub fn render(page: &Page) -> Result<String> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    for (name, text) in TEMPLATES {
        environment.add_template(name, text).with_context(|| format!("in {name}"))?;
    }
    let series: Vec<_> = page.series.iter().map(|one| (columns(one), histogram(one))).collect();
    let maps: Vec<_> = page.pairs.iter().map(|one| (matrix(one), nodes(one))).collect();
    let style = Value::from_safe_string(STYLE.to_owned());
    let (page, series, maps) = (Serde(page), Serde(series), Serde(maps));
    let page = environment.get_template("page.html").and_then(|template| {
        template.render(context! { page, series, maps, style, version => env!("CARGO_PKG_VERSION") })
    });
    // A template's own last line end is left out.
    let page = page.map(|page| page + "\n");
    page.context(
        "the page can't be made: its templates and its content do not fit; this is a mistake of this program",
    )
}

#[cfg(test)]
mod tests;
