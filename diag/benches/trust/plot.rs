//! A table as a picture: a line for each row, as SVG that a browser shows in light and in dark.

use std::fmt::Write as _;
use std::path::Path;

const WIDTH: f64 = 790.0;
const HEIGHT: f64 = 420.0;
/// What the lines leave free: on the left the scale, below it the other and on the right the names of the lines.
const LEFT: f64 = 60.0;
const RIGHT: f64 = 330.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;

/// Eight colours that are told apart in both schemes and with every common colour blindness.
const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c00", "#7f7f7f"];

/// The picture of a table.
pub struct Plot<'t> {
    pub title: &'t str,
    /// What the columns are, and their names, at equal distances.
    pub across: (&'t str, Vec<String>),
    /// What the numbers are, and the greatest of the scale.
    pub up: (&'t str, f64),
    /// Name and numbers of each row.
    pub rows: Vec<(String, Vec<f64>)>,
}

impl Plot<'_> {
    fn x(&self, at: usize) -> f64 {
        let last = (self.across.1.len() - 1).max(1) as f64;
        LEFT + at as f64 / last * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - value / self.up.1 * (HEIGHT - TOP - BOTTOM)
    }

    fn axes(&self, svg: &mut String) {
        let (left, right) = (self.x(0), self.x(self.across.1.len() - 1));
        for step in 0..=5 {
            let value = self.up.1 * f64::from(step) / 5.0;
            let y = self.y(value);
            write!(svg, "<path class='g' d='M{left} {y:.1}H{right:.1}'/>").unwrap();
            writeln!(svg, "<text x='{}' y='{:.1}' text-anchor='end'>{value:.0}</text>", left - 8.0, y + 4.0)
                .unwrap();
        }
        for (at, name) in self.across.1.iter().enumerate() {
            let (x, y) = (self.x(at), HEIGHT - BOTTOM + 18.0);
            writeln!(svg, "<text x='{x:.1}' y='{y}' text-anchor='middle'>{name}</text>").unwrap();
        }
        let middle = f64::midpoint(left, right);
        let below = HEIGHT - 10.0;
        writeln!(svg, "<text x='{middle:.1}' y='{below}' text-anchor='middle'>{}</text>", self.across.0)
            .unwrap();
        writeln!(svg, "<text x='{left}' y='{}'>{}</text>", TOP - 10.0, self.up.0).unwrap();
    }

    fn text(&self) -> String {
        let mut svg = format!(
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{}'>\n\
             <style>text{{font:13px sans-serif;fill:#222}}.g{{stroke:#ccc}}.l{{fill:none;stroke-width:2.5}}.b{{fill:#fff}}\n\
             @media(prefers-color-scheme:dark){{text{{fill:#ddd}}.g{{stroke:#444}}.b{{fill:#111}}}}</style>\n\
             <rect class='b' width='100%' height='100%'/>\n",
            self.title
        );
        self.axes(&mut svg);
        for (at, ((name, numbers), colour)) in self.rows.iter().zip(COLOURS.into_iter().cycle()).enumerate() {
            let points = numbers.iter().enumerate().map(|(at, value)| {
                format!("{}{:.1} {:.1}", if at == 0 { "M" } else { "L" }, self.x(at), self.y(*value))
            });
            // Every other line is dashed: two of one part lie close together.
            let dash = if at % 2 == 0 { "" } else { " stroke-dasharray='7 4'" };
            let path = points.collect::<String>();
            writeln!(svg, "<path class='l' stroke='{colour}'{dash} d='{path}'/>").unwrap();
            let (x, y) = (WIDTH - RIGHT + 14.0, TOP + 10.0 + 22.0 * at as f64);
            write!(svg, "<path class='l' stroke='{colour}'{dash} d='M{x} {}h26'/>", y - 4.0).unwrap();
            writeln!(svg, "<text x='{}' y='{y}'>{name}</text>", x + 34.0).unwrap();
        }
        svg + "</svg>\n"
    }

    /// Writes it as a file of this name where the argument `plots=FOLDER` asks for pictures.
    pub fn write(&self, name: &str) {
        let folder = std::env::args().find_map(|word| Some(word.strip_prefix("plots=")?.to_owned()));
        if let Some(folder) = folder {
            std::fs::write(Path::new(&folder).join(name), self.text()).unwrap();
        }
    }
}
