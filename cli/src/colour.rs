//! Colours for a person at a terminal, and nowhere else: never in a pipe or file, nor where NO_COLOR says so.

use std::io::IsTerminal as _;

/// What a word means.
#[derive(Clone, Copy)]
pub enum Tone {
    /// All is well.
    Good,
    /// Something is wrong.
    Bad,
    /// Something is to be known.
    Notice,
}

/// Whether standard output takes colours.
#[derive(Clone, Copy)]
pub struct Colour(bool);

impl Colour {
    /// As it is here: `no_color` is the variable of that name, which counts unless it is empty.
    #[must_use]
    pub fn of_stdout() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self(std::io::stdout().is_terminal() && !refused && !dumb)
    }

    /// The text with one word of it, at the beginning of lines, in its colour.
    #[must_use]
    pub fn lines(self, text: &str, words: &[(&str, Tone)]) -> String {
        if !self.0 {
            return text.to_owned();
        }
        let paint = |line: &str| {
            let found = words.iter().find(|(word, _)| line.starts_with(word));
            found.map_or_else(
                || line.to_owned(),
                |(word, tone)| format!("{}{}", self.word(word, *tone), &line[word.len()..]),
            )
        };
        text.split_inclusive('\n').map(paint).collect()
    }

    /// One word in its colour.
    #[must_use]
    pub fn word(self, word: &str, tone: Tone) -> String {
        let code = match tone {
            Tone::Good => 32,
            Tone::Bad => 31,
            Tone::Notice => 33,
        };
        if self.0 { format!("\x1b[1;{code}m{word}\x1b[0m") } else { word.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_gets_colours() {
        let words = [("MISTAKE", Tone::Bad)];
        let text = "MISTAKE: x\n  MISTAKE\n";
        assert_eq!(Colour(false).lines(text, &words), text);
        assert_eq!(Colour(true).lines(text, &words), "\x1b[1;31mMISTAKE\x1b[0m: x\n  MISTAKE\n");
        assert!(Colour(true).word("PASS", Tone::Good).contains("32m"));
    }
}
