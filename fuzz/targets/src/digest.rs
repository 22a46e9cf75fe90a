//! What agents tell of ranks once a second, where it is judged: digests stem from users' processes.
//!
//! A file is a list of lines: a digest as JSON, `+<milliseconds>` for the time that passes before the next look.

use diag::c4d::decide;
use diag::c4d::digest::{Digest, DigestError, MAX_DIGEST_BYTES};
use diag::c4d::finding::MAX_NAMED;
use diag::c4d::picture::Picture;
use diag::c4d::settings::Settings;
use diag::c4d::step;
use diag::runtime_report::RuntimeReport;
use jiff::Timestamp;

use crate::holds;

/// Most looks of one file.
const MOST_LOOKS: usize = 64;
/// Longest text of a finding: names of [`MAX_NAMED`] ranks at most.
const MOST_WORDS_BYTES: usize = 8192;

fn names() -> Vec<String> {
    (0..4).map(|number| format!("n{number}")).collect()
}

/// Digests are read or refused; whatever they say, what is found keeps its bounds and is the same twice.
pub fn run(data: &[u8]) {
    let settings = Settings::default();
    let (mut picture, mut other) = (Picture::new(names()), Picture::new(names()));
    let (mut now_ms, mut waiting, mut looks) = (0_u64, Vec::new(), 0);
    let end = b"+1000\n".as_slice();
    for line in data.split(|byte| *byte == b'\n').chain([end.trim_ascii_end(); 2]) {
        if let Some(ms) = line.strip_prefix(b"+") {
            now_ms += u64::from(holds::text(ms).parse().unwrap_or(1000_u32));
            let found = step(&mut picture, &waiting, now_ms, &settings);
            assert_eq!(found, step(&mut other, &waiting, now_ms, &settings));
            for one in &found {
                holds::line(&one.message, MOST_WORDS_BYTES);
                one.evidence.iter().for_each(|words| holds::line(words, MOST_WORDS_BYTES));
                assert!(one.suspects.len() <= MAX_NAMED && one.suspects.len() <= one.suspects_total);
                assert!((0.0..=1.0).contains(&one.confidence) && one.since_ms <= one.found_ms);
                _ = decide::item(one, false);
            }
            let mut report = RuntimeReport::new("c", 1, 1, "n0", Timestamp::UNIX_EPOCH);
            report.findings = found;
            holds::lines(&report.text());
            waiting.clear();
            looks += 1;
            if looks == MOST_LOOKS {
                break;
            }
            continue;
        }
        match Digest::parse(line) {
            Ok(digest) => {
                let written = serde_json::to_vec(&digest).unwrap();
                assert_eq!(Digest::parse(&written).unwrap(), digest);
                if let Err(wrong) = digest.check() {
                    assert!(!wrong.is_empty() && wrong.len() <= 8);
                    wrong.iter().for_each(|words| holds::line(words, 2048));
                }
                waiting.push(digest);
            }
            Err(DigestError::TooLong(bytes)) => assert!(bytes > MAX_DIGEST_BYTES),
            Err(error) => holds::line(&error.to_string(), 2048),
        }
    }
}
