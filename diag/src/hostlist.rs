//! Expands a Slurm hostlist such as `rack[1-2]n[01-03],login` to the names it stands for, in its order and with
//! its zeros. It does not compress, and it knows no node: whether a name exists is Slurm's to say.
//!
//! Broken input is an error, where Slurm guesses (`a[1-]`, `a[`). Two or more brackets count like the digits of
//! a number, the last one fastest; Slurm does the same for up to two.

/// Most names that one list may stand for: Slurm's own bound on the nodes of a cluster.
pub const MAX_NAMES: usize = 65_536;

/// Longest name: what DNS allows a host name.
pub const MAX_NAME_BYTES: usize = 255;

/// Longest text of a list: [`MAX_NAMES`] short names written out.
pub const MAX_TEXT_BYTES: usize = 1 << 20;

/// Most digits of a number in brackets: all of them fit in 64 bits.
const MAX_DIGITS: usize = 18;

/// Why a text is not a hostlist. Positions count bytes from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostlistError {
    /// Longer than [`MAX_TEXT_BYTES`].
    #[error("the host list has {bytes} bytes, at most {MAX_TEXT_BYTES} are read")]
    TextTooLong {
        /// Its length.
        bytes: usize,
    },
    /// No names at all.
    #[error("the host list is empty")]
    Empty,
    /// Nothing between two commas, or before the first or after the last one.
    #[error("a name is missing at byte {at} of the host list")]
    EmptyName {
        /// Where it should be.
        at: usize,
    },
    /// A character that no host name has.
    #[error("byte {at} of the host list is no part of a host name")]
    Character {
        /// Where it stands.
        at: usize,
    },
    /// A bracket that is not opened, not closed, or opened twice.
    #[error("a bracket at byte {at} of the host list has no partner")]
    Bracket {
        /// Where it stands.
        at: usize,
    },
    /// Brackets that hold something other than numbers and ranges of numbers of at most 18 digits.
    #[error("at byte {at} of the host list a number of 1 to {MAX_DIGITS} digits should stand")]
    Number {
        /// Where it should stand.
        at: usize,
    },
    /// A range that counts down.
    #[error("the range {first}-{last} at byte {at} of the host list counts down")]
    Backwards {
        /// Its first number.
        first: u64,
        /// Its last number.
        last: u64,
        /// Where it stands.
        at: usize,
    },
    /// More than [`MAX_NAMES`].
    #[error("the host list stands for more than {MAX_NAMES} names")]
    TooManyNames,
    /// A name longer than [`MAX_NAME_BYTES`].
    #[error("the host list has a name of more than {MAX_NAME_BYTES} bytes, at byte {at}")]
    NameTooLong {
        /// Where it stands.
        at: usize,
    },
}

/// A run of numbers in brackets.
#[derive(Debug, Clone, Copy)]
struct Range {
    first: u64,
    last: u64,
    /// Digits of the first number as written: shorter numbers get zeros in front.
    width: usize,
}

/// A piece of a name.
#[derive(Debug)]
enum Part<'a> {
    Text(&'a str),
    Ranges(Vec<Range>),
}

/// The names that a hostlist stands for, in its order; a name that is written twice comes twice.
///
/// # Errors
/// The first thing that is broken, or a bound that is passed; nothing is guessed.
pub fn expand(text: &str) -> Result<Vec<String>, HostlistError> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(HostlistError::TextTooLong { bytes: text.len() });
    }
    if text.is_empty() {
        return Err(HostlistError::Empty);
    }
    let mut names = Vec::new();
    let mut at = 0;
    loop {
        let (parts, end) = read_name(text, at)?;
        add_names(&parts, at, &mut names)?;
        if end == text.len() {
            return Ok(names);
        }
        at = end + 1;
    }
}

/// Reads one name from byte `at` to the comma that ends it, or to the end of the text.
fn read_name(text: &str, at: usize) -> Result<(Vec<Part<'_>>, usize), HostlistError> {
    let bytes = text.as_bytes();
    let mut parts = Vec::new();
    let (mut pos, mut plain) = (at, at);
    loop {
        let byte = bytes.get(pos).copied();
        match byte {
            None | Some(b',' | b'[') => {
                // Both ends are ASCII characters or the end of the text.
                if pos > plain {
                    parts.push(Part::Text(&text[plain..pos]));
                }
                if byte != Some(b'[') {
                    break;
                }
                let (ranges, end) = read_brackets(bytes, pos)?;
                parts.push(Part::Ranges(ranges));
                (pos, plain) = (end, end);
            }
            Some(b']') => return Err(HostlistError::Bracket { at: pos + 1 }),
            Some(byte) if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) => pos += 1,
            Some(_) => return Err(HostlistError::Character { at: pos + 1 }),
        }
    }
    if parts.is_empty() {
        return Err(HostlistError::EmptyName { at: at + 1 });
    }
    Ok((parts, pos))
}

/// Reads from an opening bracket to behind the closing one.
fn read_brackets(bytes: &[u8], open: usize) -> Result<(Vec<Range>, usize), HostlistError> {
    let mut ranges = Vec::new();
    let mut pos = open + 1;
    loop {
        let start = pos;
        let (first, width, end) = read_number(bytes, pos, open)?;
        pos = end;
        let mut last = first;
        if bytes.get(pos) == Some(&b'-') {
            (last, _, pos) = read_number(bytes, pos + 1, open)?;
        }
        if last < first {
            return Err(HostlistError::Backwards { first, last, at: start + 1 });
        }
        ranges.push(Range { first, last, width });
        match bytes.get(pos) {
            Some(b',') => pos += 1,
            Some(b']') => return Ok((ranges, pos + 1)),
            None | Some(b'[') => return Err(HostlistError::Bracket { at: open + 1 }),
            Some(_) => return Err(HostlistError::Number { at: pos + 1 }),
        }
    }
}

/// Reads a number; gives it, how many digits it has, and where it ends.
fn read_number(bytes: &[u8], at: usize, open: usize) -> Result<(u64, usize, usize), HostlistError> {
    if at >= bytes.len() {
        return Err(HostlistError::Bracket { at: open + 1 });
    }
    let digits = bytes[at..].iter().take(MAX_DIGITS + 1).take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 || digits > MAX_DIGITS {
        return Err(HostlistError::Number { at: at + 1 });
    }
    let value = bytes[at..at + digits].iter().fold(0, |value, byte| value * 10 + u64::from(byte - b'0'));
    Ok((value, digits, at + digits))
}

/// Adds all the names that one name with brackets stands for. They are counted before the first is made.
fn add_names(parts: &[Part<'_>], at: usize, names: &mut Vec<String>) -> Result<(), HostlistError> {
    let mut count: u64 = 1;
    for part in parts {
        if let Part::Ranges(ranges) = part {
            // No overflow: a range has fewer than 10^18 numbers, and the sum saturates.
            let numbers = ranges.iter().fold(0u64, |sum, r| sum.saturating_add(r.last - r.first + 1));
            count = count.saturating_mul(numbers);
        }
    }
    if count > (MAX_NAMES - names.len()) as u64 {
        return Err(HostlistError::TooManyNames);
    }
    let mut made = vec![String::new()];
    for part in parts {
        let mut longer = Vec::new();
        let mut add = |name: String| {
            let fits = name.len() <= MAX_NAME_BYTES;
            longer.push(name);
            if fits { Ok(()) } else { Err(HostlistError::NameTooLong { at: at + 1 }) }
        };
        for name in &made {
            match part {
                Part::Text(text) => add(format!("{name}{text}"))?,
                Part::Ranges(ranges) => {
                    for Range { first, last, width } in ranges {
                        (*first..=*last).try_for_each(|number| add(format!("{name}{number:0width$}")))?;
                    }
                }
            }
        }
        made = longer;
    }
    names.append(&mut made);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(text: &str) -> String {
        expand(text).unwrap().join(" ")
    }

    #[test]
    fn names_come_in_order_and_with_their_zeros() {
        assert_eq!(names("login"), "login");
        assert_eq!(names("n[1-3]"), "n1 n2 n3");
        assert_eq!(names("n[08-11]"), "n08 n09 n10 n11");
        assert_eq!(names("n[9-11,3,007]"), "n9 n10 n11 n3 n007");
        assert_eq!(names("n[8-010]"), "n8 n9 n10");
        assert_eq!(names("n[99-101],m"), "n99 n100 n101 m");
        assert_eq!(
            names("rack[1-2]n[01-03],a,b[1,3-4]"),
            "rack1n01 rack1n02 rack1n03 rack2n01 rack2n02 rack2n03 a b1 b3 b4"
        );
        assert_eq!(names("a[1-2][3-4]"), "a13 a14 a23 a24");
        assert_eq!(names("n[1-2],n[2-3]"), "n1 n2 n2 n3");
        assert_eq!(names("r[1-2].x-y_z"), "r1.x-y_z r2.x-y_z");
        assert_eq!(names("[1-2]"), "1 2");
    }

    #[test]
    fn broken_lists_are_errors_at_a_place() {
        use HostlistError::{Backwards, Bracket, Character, Empty, EmptyName, Number};
        let cases = [
            ("", Empty),
            (",a", EmptyName { at: 1 }),
            ("a,", EmptyName { at: 3 }),
            ("a,,b", EmptyName { at: 3 }),
            ("a[", Bracket { at: 2 }),
            ("a[1", Bracket { at: 2 }),
            ("a[1-", Bracket { at: 2 }),
            ("a[1,", Bracket { at: 2 }),
            ("a[1[2]]", Bracket { at: 2 }),
            ("a]", Bracket { at: 2 }),
            ("a[1]]", Bracket { at: 5 }),
            ("a[]", Number { at: 3 }),
            ("a[1-]", Number { at: 5 }),
            ("a[-2]", Number { at: 3 }),
            ("a[1-2-3]", Number { at: 6 }),
            ("a[1,,2]", Number { at: 5 }),
            ("a[x]", Number { at: 3 }),
            ("a[ 1]", Number { at: 3 }),
            ("a[1234567890123456789]", Number { at: 3 }),
            ("a[3-1]", Backwards { first: 3, last: 1, at: 3 }),
            ("a b", Character { at: 2 }),
            ("a\n", Character { at: 2 }),
            ("n\u{e4}", Character { at: 2 }),
            ("../x/", Character { at: 3 }),
        ];
        for (text, error) in cases {
            assert_eq!(expand(text).unwrap_err(), error, "{text:?}");
        }
    }

    #[test]
    fn nothing_runs_away() {
        for text in [
            "[1-999999999]",
            "[0-999999999999999999]",
            "a[1-9999][1-9999][1-9999]",
            "n[1-65536],m",
            "n[0-65536]",
        ] {
            assert_eq!(expand(text).unwrap_err(), HostlistError::TooManyNames, "{text}");
        }
        assert_eq!(expand("n[00001-65536]").unwrap().len(), MAX_NAMES);
        assert_eq!(expand(&"a,".repeat(MAX_NAMES + 1)).unwrap_err(), HostlistError::TooManyNames);
        assert_eq!(expand(&"a[1]".repeat(200_000)).unwrap_err(), HostlistError::NameTooLong { at: 1 });
        assert!(matches!(expand(&"a".repeat(MAX_TEXT_BYTES + 1)), Err(HostlistError::TextTooLong { .. })));
        assert_eq!(expand(&"a".repeat(MAX_NAME_BYTES)).unwrap().len(), 1);
        assert_eq!(
            expand(&"a".repeat(MAX_NAME_BYTES + 1)).unwrap_err(),
            HostlistError::NameTooLong { at: 1 }
        );
        let mixed = format!("{}[001,1]", "a".repeat(MAX_NAME_BYTES - 2));
        assert_eq!(expand(&mixed).unwrap_err(), HostlistError::NameTooLong { at: 1 });
    }

    proptest! {
        #[test]
        fn any_text_ends_within_the_bounds(text in "[a-c0-9,\\[\\]\\-_ ]{0,40}|.{0,40}") {
            if let Ok(names) = expand(&text) {
                prop_assert!(!names.is_empty() && names.len() <= MAX_NAMES);
                for name in names {
                    prop_assert!(!name.is_empty() && name.len() <= MAX_NAME_BYTES);
                    prop_assert!(!name.contains([',', '[', ']']));
                }
            }
        }

        #[test]
        fn a_list_made_of_ranges_gives_what_counting_gives(
            items in proptest::collection::vec(("[a-z]{1,8}", 0u32..2000, 0u32..30, 1usize..7), 1..6)
        ) {
            let mut text = Vec::new();
            let mut wanted = Vec::new();
            for (prefix, first, more, width) in items {
                let last = first + more;
                text.push(format!("{prefix}[{first:0width$}-{last:0width$}]"));
                wanted.extend((first..=last).map(|number| format!("{prefix}{number:0width$}")));
            }
            prop_assert_eq!(expand(&text.join(",")).unwrap(), wanted);
        }

        #[test]
        fn written_out_names_stay_as_they_are(names in proptest::collection::vec("[a-z][a-z0-9._-]{0,12}", 1..50)) {
            prop_assert_eq!(expand(&names.join(",")).unwrap(), names);
        }
    }
}
