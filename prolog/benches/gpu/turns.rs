//! Two sides that measure by turns, and the table of what they found. No process and no GPU is touched here.

/// What one side measured in its turn: a number for each row, none where it leaves one out; or why it can't.
pub type Reading = Result<Vec<Option<f64>>, String>;

/// The turns of one side.
#[derive(Debug, Default)]
pub struct Side {
    readings: Vec<Vec<Option<f64>>>,
    /// Why there are no more of them.
    pub trouble: Option<String>,
}

impl Side {
    async fn take(&mut self, measure: &mut impl AsyncFnMut() -> Reading) {
        // What can't be measured once is not waited for again.
        if self.trouble.is_some() {
            return;
        }
        match measure().await {
            Ok(reading) => self.readings.push(reading),
            Err(why) => self.trouble = Some(why),
        }
    }

    /// A row's numbers, turn by turn.
    fn row(&self, row: usize) -> Vec<Option<f64>> {
        self.readings.iter().map(|reading| reading.get(row).copied().flatten()).collect()
    }
}

/// What both sides measured.
#[derive(Debug, Default)]
pub struct Turns {
    pub ours: Side,
    pub theirs: Side,
}

/// Has both sides measure `repeats` times, by turns. Who begins changes too: the second finds a warmer GPU.
pub async fn by_turns(
    repeats: usize,
    mut ours: impl AsyncFnMut() -> Reading,
    mut theirs: impl AsyncFnMut() -> Reading,
) -> Turns {
    let mut turns = Turns::default();
    for turn in 0..repeats {
        if turn % 2 == 0 {
            turns.ours.take(&mut ours).await;
            turns.theirs.take(&mut theirs).await;
        } else {
            turns.theirs.take(&mut theirs).await;
            turns.ours.take(&mut ours).await;
        }
    }
    turns
}

/// Median, least and greatest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub greatest: f64,
}

impl Spread {
    /// Of some numbers; nothing where there are none.
    pub fn of(numbers: impl Iterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = numbers.collect();
        sorted.sort_by(f64::total_cmp);
        let (&least, &greatest) = (sorted.first()?, sorted.last()?);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Self { median: f64::midpoint(low, high), least, greatest })
    }

    fn words(self, digits: usize) -> String {
        let Self { median, least, greatest } = self;
        format!("{median:.digits$} ({least:.digits$} to {greatest:.digits$})")
    }
}

/// The head of the table.
pub const HEAD: [&str; 6] = ["what", "unit", "ours", "theirs", "ours / theirs", "theirs is"];

/// A row: medians, with least and greatest in parentheses; the ratio is that of the turns, each by itself.
pub fn row(what: &str, unit: &str, beside: &str, turns: &Turns, row: usize) -> [String; 6] {
    let (ours, theirs) = (turns.ours.row(row), turns.theirs.row(row));
    let cell = |side: &[Option<f64>]| {
        let spread = Spread::of(side.iter().copied().flatten());
        spread
            .map_or_else(|| "-".to_owned(), |spread| spread.words(if spread.median < 100.0 { 2 } else { 1 }))
    };
    let pairs = ours.iter().zip(&theirs).filter_map(|(ours, theirs)| Some((*ours)? / (*theirs)?));
    let ratio = Spread::of(pairs).map_or_else(|| "-".to_owned(), |ratio| ratio.words(3));
    let mut beside = beside.to_owned();
    for (whose, side) in [("ours", &turns.ours), ("theirs", &turns.theirs)] {
        if let Some(why) = &side.trouble {
            beside.push_str(&format!("; {whose}, turn {}: {why}", side.readings.len() + 1));
        }
    }
    [what.to_owned(), unit.to_owned(), cell(&ours), cell(&theirs), ratio, beside]
}

/// The table as text; the last column as it comes.
pub fn table(rows: &[[String; 6]]) -> String {
    let head = HEAD.map(str::to_owned);
    let all = || std::iter::once(&head).chain(rows);
    let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let line = |row: &[String; 6]| {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = if column + 1 == row.len() { 0 } else { width(column) + 2 };
            line.push_str(&format!("{cell:<width$}"));
        }
        line + "\n"
    };
    all().map(line).collect()
}

/// The bus bandwidth of a size in the table of nccl-tests: size, count, type, operation, root, then time, algbw and busbw.
pub fn busbw(table: &str, size: u64) -> Option<f64> {
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.into_iter()
        .find(|row| row.first().is_some_and(|first| first.parse() == Ok(size)))?
        .get(7)?
        .parse()
        .ok()
}
