//! Places and lengths in the pictures of a page, in px of their own: a picture that is wider than its box scrolls in it.

use diag::page::{Bar, Cell, Group, PairDrawing, PairMap, Series, SeriesDrawing};
use serde::Serialize;

/// Height of the area of bars.
const PLOT: f64 = 150.0;

/// Room above the bars, for a sign and a number.
const ABOVE: f64 = 34.0;

/// The line on which bars stand.
const BASE: f64 = ABOVE + PLOT;

/// Room beside the bars, for the words of limit and middle.
const BESIDE: f64 = 136.0;

/// Least distance of two lines of words.
const LINE: f64 = 15.0;

/// Width of a letter, as far as one is known before it is set.
const LETTER: f64 = 6.4;

/// A length as it is written.
fn px(length: f64) -> String {
    let text = format!("{length:.1}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

/// A line across a picture, with its words beside it.
#[derive(Debug, Serialize)]
pub struct Level {
    y: String,
    words_y: String,
    words: String,
}

/// Bars side by side.
#[derive(Debug, Serialize)]
pub struct Columns {
    width: String,
    height: String,
    base: String,
    right: String,
    bars: Vec<Column>,
    groups: Vec<Label>,
    limit: Option<Level>,
    median: Option<Level>,
}

/// A bar that stands on the base line.
#[derive(Debug, Serialize)]
struct Upright {
    x: String,
    y: String,
    width: String,
    height: String,
    middle: String,
    /// Of the sign above it.
    sign_y: String,
    /// Of a number above the sign.
    value_y: String,
}

impl Upright {
    /// One from `x` on.
    fn new((x, width): (f64, f64), height: f64) -> Self {
        Self {
            x: px(x),
            y: px(BASE - height),
            width: px(width),
            height: px(height),
            middle: px(x + width / 2.0),
            sign_y: px(BASE - height - 6.0),
            value_y: px(BASE - height - 20.0),
        }
    }
}

#[derive(Debug, Serialize)]
struct Column {
    #[serde(flatten)]
    bar: Upright,
    part: String,
    value: String,
    miss: bool,
    words: String,
}

#[derive(Debug, Serialize)]
struct Label {
    x: String,
    from: String,
    to: String,
    words: String,
}

/// The end of a name, which tells names apart, as long as there is room for it.
fn fitting(name: &str, width: f64) -> String {
    let room = (1..=name.chars().count()).take_while(|letters| *letters as f64 * LETTER <= width).count();
    let long = name.chars().count() - room;
    if long == 0 {
        name.to_owned()
    } else {
        format!("…{}", name.chars().skip(long + 1).collect::<String>())
    }
}

/// A bar with its words, and a sign and its number above it where it misses.
fn column(bar: &Bar, place: (f64, f64)) -> Column {
    let limit = if bar.limit.is_empty() { String::new() } else { format!(", limit {}", bar.limit) };
    Column {
        bar: Upright::new(place, bar.share * PLOT),
        part: bar.part.clone(),
        value: bar.value.split(' ').next().unwrap_or_default().to_owned(),
        miss: bar.miss,
        words: format!("{}: {}{limit}{}", bar.name, bar.value, if bar.miss { ", misses it" } else { "" }),
    }
}

/// The lines of limit and median, with words that do not meet each other.
fn levels(series: &Series) -> (Option<Level>, Option<Level>) {
    let place = |share: f64| BASE - share.min(1.0) * PLOT;
    // A limit beyond the scale has no line.
    let limit = series.limit.as_ref().filter(|(share, _)| *share <= 1.0);
    let (mut limit_y, mut median_y) =
        (limit.map(|(share, _)| place(*share)), series.median.as_ref().map(|(share, _)| place(*share)));
    let lines = (limit_y, median_y);
    if let (Some(one), Some(other)) = (limit_y, median_y)
        && (one - other).abs() < LINE
    {
        let middle = f64::midpoint(one, other);
        let (up, down) = (middle - LINE / 2.0, middle + LINE / 2.0);
        (limit_y, median_y) = if one < other { (Some(up), Some(down)) } else { (Some(down), Some(up)) };
    }
    let level = |line: Option<f64>, words_y: Option<f64>, kind: &str, text: Option<&String>| {
        Some(Level { y: px(line?), words_y: px(words_y? + 4.0), words: format!("{kind} {}", text?) })
    };
    let limit = level(lines.0, limit_y, "limit", limit.map(|(_, text)| text));
    let median = level(lines.1, median_y, "median", series.median.as_ref().map(|(_, text)| text));
    (limit, median)
}

/// The bars of a series, where its subjects are parts of nodes.
pub fn columns(series: &Series) -> Option<Columns> {
    let SeriesDrawing::Bars { groups } = &series.drawing else { return None };
    if groups.iter().all(|group| group.bars.len() < 2) {
        return None;
    }
    let count: usize = groups.iter().map(|group| group.bars.len()).sum();
    let width = match count {
        0..=8 => 30.0,
        9..=16 => 22.0,
        17..=32 => 16.0,
        _ => 9.0,
    };
    let (gap, between) = (if width < 10.0 { 2.0 } else { 3.0 }, 16.0);
    let mut x = 4.0;
    let mut picture = Columns {
        width: String::new(),
        height: px(BASE + 36.0),
        base: px(BASE),
        right: String::new(),
        bars: Vec::with_capacity(count),
        groups: Vec::with_capacity(groups.len()),
        limit: None,
        median: None,
    };
    for Group { node, bars } in groups {
        let from = x;
        for bar in bars {
            picture.bars.push(column(bar, (x, width)));
            x += width + gap;
        }
        let to = x - gap;
        let words = fitting(node, to - from);
        picture.groups.push(Label { x: px(f64::midpoint(from, to)), from: px(from), to: px(to), words });
        x = to + between;
    }
    let right = x - between + 8.0;
    (picture.right, picture.width) = (px(right), px(right + BESIDE));
    (picture.limit, picture.median) = levels(series);
    Some(picture)
}

/// A distribution.
#[derive(Debug, Serialize)]
pub struct Histogram {
    width: String,
    height: String,
    base: String,
    bins: Vec<Step>,
    limit: Option<String>,
}

#[derive(Debug, Serialize)]
struct Step {
    #[serde(flatten)]
    bar: Upright,
    miss: bool,
    words: String,
}

/// The distribution of a series of many.
pub fn histogram(series: &Series) -> Option<Histogram> {
    let SeriesDrawing::Distribution { bins, limit, .. } = &series.drawing else { return None };
    let (width, gap) = (24.0, 2.0);
    let step = width + gap;
    let bins = bins.iter().enumerate().map(|(place, bin)| {
        // One of thousands is still to be seen.
        let height = if bin.count > 0 { (bin.share * PLOT).max(3.0) } else { 0.0 };
        let misses =
            if bin.misses > 0 { format!(", {} of them miss their limit", bin.misses) } else { String::new() };
        Step {
            bar: Upright::new((place as f64 * step, width), height),
            miss: bin.misses > 0,
            words: format!("{} to {}: {}{misses}", bin.from, bin.to, bin.count),
        }
    });
    let bins: Vec<Step> = bins.collect();
    let whole = bins.len() as f64 * step;
    Some(Histogram {
        width: px(whole),
        height: px(BASE + 24.0),
        base: px(BASE),
        bins,
        limit: limit.map(|share| px(share * whole)),
    })
}

/// A matrix of pairs.
#[derive(Debug, Serialize)]
pub struct Matrix {
    width: String,
    height: String,
    left: String,
    top: String,
    side: String,
    size: String,
    labels: Vec<MatrixLabel>,
    cells: Vec<MatrixCell>,
}

#[derive(Debug, Serialize)]
struct MatrixLabel {
    words: String,
    row_y: String,
    column_x: String,
}

#[derive(Debug, Serialize)]
struct MatrixCell {
    x: String,
    y: String,
    size: String,
    text_x: String,
    text_y: String,
    level: usize,
    value: String,
    miss: bool,
    words: String,
}

/// The matrix of a map of few nodes.
pub fn matrix(map: &PairMap) -> Option<Matrix> {
    let PairDrawing::Matrix { nodes, cells } = &map.drawing else { return None };
    // Numbers have room in the cells of few nodes.
    let (side, numbers) = if nodes.len() <= 16 { (40.0, true) } else { (20.0, false) };
    let longest = nodes.iter().map(|node| node.chars().count()).max().unwrap_or_default();
    let left = (longest as f64 * LETTER).min(120.0) + 10.0;
    // Words above columns stand upright where they would meet each other.
    let top = left;
    let label = |(place, node): (usize, &String)| MatrixLabel {
        words: fitting(node, left - 10.0),
        row_y: px(top + (place as f64 + 0.5) * side + 4.0),
        column_x: px(left + (place as f64 + 0.5) * side + 4.0),
    };
    let cell = |cell: &Cell, row: usize, column: usize| {
        let (x, y) = (left + column as f64 * side, top + row as f64 * side);
        MatrixCell {
            x: px(x + 1.0),
            y: px(y + 1.0),
            size: px(side - 2.0),
            text_x: px(x + side / 2.0),
            text_y: px(y + side / 2.0 + 4.0),
            level: cell.level,
            value: match (numbers, cell.miss) {
                (true, _) => cell.value.clone(),
                (false, true) => "✕".to_owned(),
                (false, false) => String::new(),
            },
            miss: cell.miss,
            words: cell.words.clone(),
        }
    };
    let size = nodes.len() as f64 * side;
    Some(Matrix {
        width: px(left + size + 2.0),
        height: px(top + size + 2.0),
        left: px(left),
        top: px(top),
        side: px(side),
        size: px(size),
        labels: nodes.iter().enumerate().map(label).collect(),
        // Both ways, so that a node that is slow with everybody is a row and a column.
        cells: cells
            .iter()
            .flat_map(|one| [cell(one, one.row, one.column), cell(one, one.column, one.row)])
            .collect(),
    })
}

/// The nodes of a large job, a cell each; cells of one level are one path, so that a thousand are not a thousand elements.
#[derive(Debug, Serialize)]
pub struct Nodes {
    width: String,
    height: String,
    paths: Vec<Path>,
    marked: Vec<MarkedNode>,
    unmarked: usize,
}

#[derive(Debug, Serialize)]
struct Path {
    class: String,
    d: String,
}

#[derive(Debug, Serialize)]
struct MarkedNode {
    x: String,
    y: String,
    size: String,
    text_x: String,
    text_y: String,
    level: usize,
    words: String,
}

/// Most nodes that are marked one by one.
const MOST_MARKED: usize = 64;

/// Cells of a row.
const ACROSS: usize = 32;

/// The picture of the nodes of a map of many.
pub fn nodes(map: &PairMap) -> Option<Nodes> {
    let PairDrawing::Nodes { cells, .. } = &map.drawing else { return None };
    let side = 22.0;
    let place = |at: usize| ((at % ACROSS) as f64 * side + 1.0, (at / ACROSS) as f64 * side + 1.0);
    let size = side - 2.0;
    let mut paths: std::collections::BTreeMap<Option<usize>, String> = std::collections::BTreeMap::new();
    let (mut marked, mut unmarked) = (Vec::new(), 0);
    for (at, cell) in cells.iter().enumerate() {
        let (x, y) = place(at);
        if cell.miss && marked.len() < MOST_MARKED {
            marked.push(MarkedNode {
                x: px(x),
                y: px(y),
                size: px(size),
                text_x: px(x + size / 2.0),
                text_y: px(y + size / 2.0 + 4.0),
                level: cell.level.unwrap_or(0),
                words: format!("{}: {}", cell.name, cell.words),
            });
        } else {
            unmarked += usize::from(cell.miss);
            let path = paths.entry(cell.level).or_default();
            path.push_str(&format!("M{} {}h{size}v{size}h-{size}z", px(x), px(y)));
        }
    }
    let class = |level: Option<usize>| level.map_or_else(|| "none".to_owned(), |level| format!("l{level}"));
    Some(Nodes {
        width: px(ACROSS.min(cells.len()) as f64 * side),
        height: px(cells.len().div_ceil(ACROSS) as f64 * side),
        paths: paths.into_iter().map(|(level, d)| Path { class: class(level), d }).collect(),
        marked,
        unmarked,
    })
}
