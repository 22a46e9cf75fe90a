//! Which characters may stand in a line that somebody else chose a part of: a job's user, a peer, a driver, a library.
//! What is said here holds for terminals, logs, reasons of drains, and comments alike. Not what the lines say.

/// Whether a character shows as itself and leaves the rest of the line alone. Control characters end lines and move the
/// cursor. Of the others those are left out that change the direction of what follows, end a line for some readers, or
/// can't be seen, so that two names that differ would look alike.
#[must_use]
pub fn is_plain(c: char) -> bool {
    let hidden = matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    );
    !c.is_control() && !hidden
}

/// One line in which nothing can move the cursor, forge another line or hide: a space stands for what is left out.
#[must_use]
pub fn printable(line: &str) -> String {
    line.chars().map(|c| if is_plain(c) { c } else { ' ' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a user could put into a name: a line of its own, a cursor's movement, a colour, C1's escape, a reversed text, a
    /// line end of Unicode's, marks that can't be seen, a tag.
    const HOSTILE: &str = "a\n<28>b\r\x1b[2Kc\x07\u{9b}31md\u{202e}e\u{2066}f\u{2028}g\u{85}h\u{200b}i\u{feff}j\u{e0041}k\u{200f}l\0m\u{7f}n";

    #[test]
    fn nothing_of_a_hostile_line_moves_turns_or_hides_it() {
        let shown = printable(HOSTILE);
        assert_eq!(shown, "a <28>b  [2Kc  31md e f g h i j k l m n");
    }

    #[test]
    fn names_and_words_of_all_languages_stay() {
        let line = "über 名前 שלום пример n1/gpu0 ≥ 0.5 µs – 98 %";
        assert_eq!(printable(line), line);
    }

    proptest! {
        #[test]
        fn a_line_stays_one_line(text in any::<String>()) {
            let shown = printable(&text);
            prop_assert!(shown.lines().count() <= 1);
            prop_assert_eq!(shown.chars().count(), text.chars().count());
            prop_assert!(shown.chars().all(is_plain));
        }
    }
}
